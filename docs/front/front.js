// The front page: the stage plays a recording at once; Python comes when somebody forks, or while the page is idle.
import stage from "./stage.js";

const load = async (name) => (await fetch(name)).json();
const page = (values) => ({ get: (name) => values[name], set() {}, save_changes() {}, off() {}, on() {}, send() {} });
const at = (id) => document.getElementById(id);

// Who cannot see it hears who comes and who ends, and not every word; once it is paused, the stage speaks itself.
new MutationObserver(() => {
  const line = at("stage").querySelector(".pl-playing .pl-prompt")?.textContent ?? "", heard = at("heard");
  if (/ in\b| ends?,/.test(line) && heard.textContent !== line) heard.textContent = line;
}).observe(at("stage"), { childList: true, characterData: true, subtree: true });
load("three_answers.json").then((recorded) => {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches; // then a step in the middle, where there is much to see
  const step = still ? recorded.steps.length >> 1 : -1;
  stage.render({ model: page({ recorded, step, live: false }), el: at("stage") });
});

// ---- the real pagedlab, in the browser
const FOLDER = new URL("lite/static/pyodide/", location.href);
let python = null; // a promise of {start, receive}

// Bytes that have come, of all that Python needs: what is loaded meanwhile passes through here.
function count(all) {
  const plain = window.fetch, bar = at("bar");
  bar.max = all;
  window.fetch = async (...asked) => {
    const { body, ...answer } = pick(await plain(...asked));
    const counted = body?.pipeThrough(new TransformStream({
      transform(chunk, out) { bar.value += chunk.byteLength; out.enqueue(chunk); } }));
    return new Response(counted, answer);
  };
  return () => { window.fetch = plain; };
}
const pick = ({ body, headers, status, statusText }) => ({ body, headers, status, statusText });

function wake() {
  python ??= (async () => {
    const stop = count(Number(at("fork").dataset.bytes));
    const say = (text) => { if (at("fork").dataset.asked) at("progress").textContent = text; };
    try {
      say("Python is coming …");
      const { packages } = await load(new URL("pyodide-lock.json", FOLDER));
      const { loadPyodide } = await import(new URL("pyodide.mjs", FOLDER));
      const pyodide = await loadPyodide({ indexURL: FOLDER.href });
      say("pagedlab wakes up …");
      const wheels = ["traitlets", "pagedlab"].map((name) => new URL(packages[name].file_name, FOLDER).href);
      await pyodide.loadPackage(wheels, { messageCallback() {} }); // those two, and not what they would ask for
      for (const name of ["lean.py", "fork.py"]) await pyodide.runPythonAsync(await (await fetch(name)).text());
      pyodide.globals.get("story").update(pyodide.toPy(await load("one_story.json")));
      return { start: pyodide.globals.get("start"), receive: pyodide.globals.get("receive") };
    } finally {
      stop();
    }
  })();
  return python;
}

let shown = null, listeners = {};
const model = { get: (name) => shown[name], set() {}, save_changes() {}, off() {},
  on: (event, listener) => { listeners[event] = listener; },
  send: async (message) => show((await python).receive(JSON.stringify(message))) };

function show(snapshot) {
  shown = JSON.parse(snapshot);
  listeners["change:state"]?.();
  const colors = Object.fromEntries(shown.state.tables.map(({ name, color }) => [name, color]));
  const focused = document.activeElement?.dataset.teller, foreign = [];
  at("told").replaceChildren(...shown.texts.map(([name, words]) => {
    const p = document.createElement("p"), write = document.createElement("button");
    p.style.setProperty("--c", colors[name]);
    p.append(Object.assign(document.createElement("b"), { textContent: `${name}: ` }));
    for (const [word, block, right] of words) {
      const span = p.appendChild(document.createElement("span"));
      span.textContent = word;
      if (!right) Object.assign(span, { className: "wrong", title: `block ${block}: somebody else wrote this` });
    }
    const wrong = words.filter(([, , right]) => !right).map(([word]) => word).join("").trim();
    if (wrong) foreign.push(`${name} reads “${wrong}”, which it never wrote.`);
    Object.assign(write, { type: "button", textContent: "write", onclick: () => model.send({ op: "write", sequence: name, n: null }) });
    write.dataset.teller = name;
    write.setAttribute("aria-label", `${name} writes its next word`);
    p.append(" ", write);
    return p;
  }));
  if (focused) at("told").querySelector(`[data-teller="${CSS.escape(focused)}"]`)?.focus();
  at("progress").textContent = foreign.join(" ");
}

async function fork() {
  at("fork").dataset.asked = "yes";
  at("bar").hidden = Boolean(shown);
  try {
    const { start } = await wake();
    const first = !shown;
    const { default: grid } = await import("./block_grid.js");
    listeners = {};
    shown = JSON.parse(start(at("forget").checked));
    at("grid").replaceChildren();
    grid.render({ model, el: at("grid") });
    show(JSON.stringify(shown));
    at("told").hidden = at("switch").hidden = false;
    at("fork").textContent = "Start over";
    at("progress").textContent = first ? "This is pagedlab itself, running here."
      : `From the beginning: who writes ${at("forget").checked ? "forgets to copy" : "copies what is shared"}.`;
  } catch (error) {
    python = null;
    at("progress").textContent = `Python did not come: ${error.message}`;
  }
  at("bar").hidden = true;
}
if (at("fork")) { // a site that was built without Python has none
  at("fork").addEventListener("click", fork);
  at("forget").addEventListener("change", fork);
  const calm = window.requestIdleCallback ?? ((call) => setTimeout(call, 5000));
  if (!navigator.connection?.saveData) setTimeout(() => calm(() => wake().catch(() => { python = null; })), 4000);
}
