// The front page. The stage plays a recording at once. The fork is drawn as Python left it when
// the page was built; Python itself is loaded when a visitor clicks in it, and never before.

import grid from "./block_grid.js";
import stage from "./stage.js";

/**
 * What Python says of the fork: the grid's state, and of each sequence its words as
 * [word, block, whether the sequence wrote it].
 *
 * @typedef {object} Snapshot
 * @property {{tables: {name: string, color: string}[]}} state
 * @property {[string, [string, number, boolean][]][]} texts
 */

/**
 * The functions of fork.py. Both return a snapshot as JSON.
 *
 * @typedef {object} Fork
 * @property {(forget: boolean) => string} start begins the story
 * @property {(message: string) => string} receive does what a click asks
 */

const TOLD = ["s0", "s1"]; // the stories that the text speaks of
const PYTHON_FOLDER = new URL("lite/static/pyodide/", location.href);

/**
 * The node with this id.
 *
 * @param {string} id
 * @returns {HTMLElement}
 */
function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`this page has no #${id}`);
  return node;
}

/**
 * @param {string | URL} address
 * @returns {Promise<any>}
 */
async function loadJson(address) {
  const answer = await fetch(address);
  return answer.json();
}

/**
 * @param {string} address
 * @returns {Promise<string>}
 */
async function loadText(address) {
  const answer = await fetch(address);
  return answer.text();
}

// ---- the stage

/** Reads out the captions while the film plays. When it is paused, the stage reads each step. */
function readOutTheStage() {
  const line = byId("stage").querySelector(".pl-playing .pl-prompt")?.textContent ?? "";
  if (byId("heard").textContent !== line) byId("heard").textContent = line;
}

async function playTheRecording() {
  try {
    const film = await loadJson("three_answers.json");
    const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const last = film.recorded.steps.length - 1;
    /** @type {Record<string, unknown>} */
    const values = { ...film, step: reducedMotion ? last : -1, live: false, keeps_room: true };
    const model = {
      /** @param {string} name */
      get: (name) => values[name],
      on() {},
      off() {},
    };
    stage.render({ model, el: byId("stage") });
  } catch (error) {
    byId("stage").textContent = `The recording could not be loaded: ${reasonOf(error)}`;
  }
}

// ---- the real pagedlab, in the browser

/** @type {Promise<Fork> | null} */
let python = null;

/** Loads Python once. After a failure the next call tries again. */
function loadPython() {
  python ??= startPython();
  return python;
}

/** @returns {Promise<Fork>} */
async function startPython() {
  const stopCounting = countLoadedBytes(Number(byId("fork").dataset.bytes));
  try {
    say("Python is loading …");
    const { packages } = await loadJson(new URL("pyodide-lock.json", PYTHON_FOLDER));
    const { loadPyodide } = await import(new URL("pyodide.mjs", PYTHON_FOLDER).href);
    const pyodide = await loadPyodide({ indexURL: PYTHON_FOLDER.href });
    say("pagedlab is loading …");
    const wheels = ["traitlets", "pagedlab"].map((name) => {
      return new URL(packages[name].file_name, PYTHON_FOLDER).href;
    });
    // These two alone: without messageCallback, pyodide would print what it loads.
    await pyodide.loadPackage(wheels, { messageCallback() {} });
    for (const name of ["lean.py", "fork.py"]) await pyodide.runPythonAsync(await loadText(name));
    pyodide.globals.get("story").update(pyodide.toPy(await loadJson("one_story.json")));
    return { start: pyodide.globals.get("start"), receive: pyodide.globals.get("receive") };
  } catch (error) {
    python = null;
    throw error;
  } finally {
    stopCounting();
  }
}

/** @param {string} text what the line below the stories says */
function say(text) {
  byId("progress").textContent = text;
}

/**
 * @param {unknown} error
 * @returns {string}
 */
function reasonOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * Counts the bytes that are fetched from now on, on the page's bar.
 *
 * @param {number} all bytes that Python needs
 * @returns {() => void} what stops it
 */
function countLoadedBytes(all) {
  const plainFetch = window.fetch;
  const bar = /** @type {HTMLProgressElement} */ (byId("bar"));
  bar.max = all;
  window.fetch = async (...request) => {
    const { body, headers, status, statusText } = await plainFetch(...request);
    const counter = new TransformStream({
      transform(chunk, out) {
        bar.value += chunk.byteLength;
        out.enqueue(chunk);
      },
    });
    return new Response(body?.pipeThrough(counter), { headers, status, statusText });
  };
  return () => {
    window.fetch = plainFetch;
  };
}

// ---- the fork

/** @type {Snapshot & Record<string, any> | null} */
let snapshot = null;
/** @type {Record<string, () => void>} */
let listeners = {};

const forkModel = {
  /** @param {string} name */
  get: (name) => snapshot?.[name],
  /**
   * @param {string} event
   * @param {() => void} listener
   */
  on(event, listener) {
    listeners[event] = listener;
  },
  off() {},
  /** @param {object} message */
  send(message) {
    return inPython(({ receive }) => showFork(receive(JSON.stringify(message))));
  },
};

/**
 * Shows what Python said: the grid, and what each sequence reads in its blocks.
 *
 * @param {string} said a snapshot as JSON
 */
function showFork(said) {
  /** @type {Snapshot} */
  const now = JSON.parse(said);
  snapshot = now;
  listeners["change:state"]?.();
  const colors = new Map(now.state.tables.map(({ name, color }) => [name, color]));
  const active = /** @type {HTMLElement | null} */ (document.activeElement);
  const focused = active?.dataset.teller;
  const stories = now.texts.map(([name, words]) => storyOf(name, words, colors.get(name) ?? ""));
  byId("told").replaceChildren(...stories);
  if (focused) focusTeller(focused);
  tellWhatHappens();
  const complaints = now.texts.map(([name, words]) => foreignWords(name, words));
  say(complaints.filter((line) => line).join(" "));
}

/** @param {string} name */
function focusTeller(name) {
  const button = byId("told").querySelector(`[data-teller="${CSS.escape(name)}"]`);
  /** @type {HTMLElement | null} */ (button)?.focus();
}

/**
 * A paragraph with the words that a sequence reads, and a button that writes the next one.
 *
 * @param {string} name
 * @param {[string, number, boolean][]} words
 * @param {string} color
 * @returns {HTMLElement}
 */
function storyOf(name, words, color) {
  const paragraph = document.createElement("p");
  const title = document.createElement("b");
  paragraph.style.setProperty("--c", color);
  title.textContent = `${name}: `;
  paragraph.append(title, ...words.map(wordNode), " ", writeButton(name));
  return paragraph;
}

/**
 * @param {[string, number, boolean]} word
 * @returns {HTMLElement}
 */
function wordNode([word, block, isOwn]) {
  const span = document.createElement("span");
  span.textContent = word;
  if (!isOwn) {
    span.className = "wrong";
    span.title = `block ${block}: another sequence wrote this`;
  }
  return span;
}

/**
 * @param {string} name
 * @returns {HTMLElement}
 */
function writeButton(name) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "write";
  button.dataset.teller = name;
  button.setAttribute("aria-label", `write the next word of ${name}`);
  button.addEventListener("click", () => forkModel.send({ op: "write", sequence: name, n: null }));
  return button;
}

/**
 * Says which words a sequence reads that it did not write, or nothing.
 *
 * @param {string} name
 * @param {[string, number, boolean][]} words
 * @returns {string}
 */
function foreignWords(name, words) {
  const foreign = words.filter(([, , isOwn]) => !isOwn).map(([word]) => word);
  const text = foreign.join("").trim();
  return text ? `${name} reads “${text}”, which it never wrote.` : "";
}

// ---- the clicks

/** What Python does goes one after the other, as the visitor clicked. */
let lastAction = Promise.resolve();
let hasStarted = false;

/**
 * Does something in Python, which the first call loads. An error is shown, and stays.
 *
 * @param {(fork: Fork) => void} action
 * @returns {Promise<void>}
 */
function inPython(action) {
  lastAction = lastAction.then(async () => {
    byId("bar").hidden = python !== null;
    try {
      const fork = await loadPython();
      if (!hasStarted) fork.start(mustForget());
      hasStarted = true;
      action(fork);
      byId("fork").hidden = false;
    } catch (error) {
      say(`This did not work: ${reasonOf(error)}. Click again to try again.`);
    }
    byId("bar").hidden = true;
  });
  return lastAction;
}

/** @returns {boolean} */
function mustForget() {
  return /** @type {HTMLInputElement} */ (byId("forget")).checked;
}

/**
 * Shows the text that is true: shared blocks are copied, they are not, or a story that the text
 * speaks of is gone.
 */
function tellWhatHappens() {
  const names = snapshot?.texts.map(([name]) => name) ?? TOLD;
  const isGone = !TOLD.every((name) => names.includes(name));
  byId("copies").hidden = isGone || mustForget();
  byId("forgets").hidden = isGone || !mustForget();
  byId("gone").hidden = !isGone;
}

/** Starts the story over, as the switch says. */
function startOver() {
  tellWhatHappens();
  return inPython(({ start }) => {
    drawFork(start(mustForget()));
    const how = mustForget() ? "forgets to copy" : "copies shared blocks first";
    say(`From the beginning: a write ${how}.`);
  });
}

/**
 * Draws the grid and the stories anew.
 *
 * @param {string} said a snapshot as JSON
 */
function drawFork(said) {
  snapshot = JSON.parse(said);
  listeners = {};
  const isMoreOpen = Boolean(document.querySelector("#grid .pl-more[open]"));
  byId("grid").replaceChildren();
  grid.render({ model: forkModel, el: byId("grid") });
  document.querySelector("#grid .pl-more")?.toggleAttribute("open", isMoreOpen);
  showFork(said);
}

/** Shows the fork as it was when the page was built. */
async function showThePreparedFork() {
  const invitation = byId("progress").textContent ?? "";
  try {
    drawFork(await loadText("fork_start.json"));
    say(invitation);
  } catch (error) {
    say(`The stories could not be loaded: ${reasonOf(error)}`);
  }
}

const changes = { childList: true, characterData: true, subtree: true };
new MutationObserver(readOutTheStage).observe(byId("stage"), changes);
playTheRecording();
if (document.getElementById("fork")) {
  // a site that was built without Python has no such section
  byId("fork").addEventListener("click", startOver);
  byId("forget").addEventListener("change", startOver);
  tellWhatHappens(); // after a reload, a browser may have kept the switch on
  showThePreparedFork();
}
