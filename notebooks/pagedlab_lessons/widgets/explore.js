// Controls above a drawing that Python makes, or that a list holds where there is no Python
// (frames.js). One question is open at a time, and the latest values win.

import { makeRoot, pointing, roving } from "./keyboard.js";
import { find, format, html, Markup, show, withData } from "./markup.js";

/**
 * A slider over `options`, a switch, or a field of text.
 *
 * @typedef {object} Control
 * @property {string} name
 * @property {"slider" | "switch" | "text"} kind
 * @property {(string | number)[]} options
 * @property {boolean} [fixed] whether it cannot be moved, since there is no Python to ask
 */

/** @typedef {string | number | boolean} Value a text, the place in a slider's options, or on */

/**
 * What the page asks of its model: `asked` {number, at} is the question, `drawn` {number, html} the
 * answer to it.
 *
 * @typedef {object} ExploreModel
 * @property {(name: string) => any} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, listener: () => void) => void} on
 * @property {(event: string, listener: () => void) => void} off
 */

const PART = "[data-link], [data-say], [data-set]";
const FEWEST_TO_PLAY = 4; // options of a slider that has a play button
const PLAY_TIME = 9000; // milliseconds for all options of a slider, within the limits below
const SHORTEST_FRAME = 150; // milliseconds
const LONGEST_FRAME = 1000; // milliseconds
const NARROW = '<svg class="px-narrow" '; // with which a drawing's variant for a narrow page begins
const NARROW_PAGE = 700; // pixels; a page may say another width in --narrow-page
/** The attributes of each kind of control. */
const INPUTS = {
  slider: html`type="range" class="pl-scrubber"`,
  switch: html`type="checkbox" role="switch"`,
  text: html`type="text" class="pl-button pl-amount" spellcheck="false" data-own-enter`,
};

/**
 * @param {{model: ExploreModel, el: HTMLElement}} context
 * @returns {() => void} what removes the view
 */
function render({ model, el }) {
  /** @type {string} */
  const caption = model.get("caption");
  /** @type {Control[]} */
  let controls = model.get("controls");
  /** @type {number} The number of the last question. */
  let number = model.get("asked").number;
  /** @type {Record<string, Value>} What the controls show. */
  let values = model.get("asked").at;
  let sent = values; // with the last question
  let isWaiting = false;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let playTimer;
  /** @type {HTMLElement | null} The part that lights up. */
  let lit = null;
  let isNarrow = false;
  let width = 0; // of the drawing, in pixels
  // What the names of this drawing's patterns begin with.
  const patterns = `look-${Math.random().toString(36).slice(2)}`;

  const root = makeRoot("a drawing with controls", "px-root");
  root.innerHTML = pageTemplate(controls, caption).source;
  const controlBox = find(root, ".px-controls");
  const room = find(root, ".px-room");
  const picture = find(root, ".px-picture");
  const line = find(root, ".px-say");
  const longest = find(root, ".px-longest");
  const keepTabStop = roving(picture, PART, () => 1);

  // ---- controls

  /** Makes the controls show the values. */
  function showValues() {
    for (const control of controls) {
      const input = find(root, withData("name", control.name));
      const value = values[control.name];
      input.checked = Boolean(value);
      if (control.kind === "slider") showSlider(control, input, Number(value));
      else input.value = String(value);
    }
  }

  /**
   * @param {Control} control
   * @param {HTMLInputElement} input
   * @param {number} place
   */
  function showSlider({ name, options }, input, place) {
    input.max = String(options.length - 1);
    input.value = String(place);
    const words = options.map(wordsOf);
    input.setAttribute("aria-valuetext", words[place]);
    const output = /** @type {HTMLOutputElement} */ (input.nextElementSibling);
    output.value = words[place];
    output.style.minWidth = `${Math.max(...words.map((word) => word.length)) + 1}ch`;
    const play = find(root, withData("play", name));
    play.hidden = options.length < FEWEST_TO_PLAY || input.disabled;
  }

  /**
   * Asks for the drawing with another value, now or after the answer to the open question.
   *
   * @param {string} name
   * @param {Value} value which the control shows at once
   */
  function ask(name, value) {
    values = { ...values, [name]: value };
    showValues();
    if (!isWaiting) send();
  }

  /** Sends the values. */
  function send() {
    number += 1;
    sent = values;
    isWaiting = true;
    picture.classList.add("px-waiting");
    model.set("asked", { number, at: values });
    model.save_changes();
  }

  controlBox.addEventListener("input", ({ target }) => {
    const input = /** @type {HTMLInputElement} */ (target);
    /** @type {Record<string, Value>} */
    const read = { text: input.value, checkbox: input.checked, range: Number(input.value) };
    stopPlaying();
    ask(input.dataset.name ?? "", read[input.type]);
  });

  // ---- playing

  /**
   * Plays a slider from where it is, or once more from its first option; or pauses it.
   *
   * @param {HTMLElement} button
   */
  function togglePlaying(button) {
    const wasPlaying = button.ariaPressed === "true";
    stopPlaying();
    if (wasPlaying) return;
    button.ariaPressed = "true";
    const { play: name = "" } = button.dataset;
    const last = Number(find(root, withData("name", name)).max);
    if (values[name] === last) ask(name, 0);
    const interval = Math.max(SHORTEST_FRAME, Math.min(LONGEST_FRAME, PLAY_TIME / (last + 1)));
    playTimer = setInterval(() => {
      const place = Number(values[name]);
      if (!root.isConnected || place >= last) stopPlaying();
      else if (!isWaiting) ask(name, place + 1); // not before the drawing is there
    }, interval);
  }

  function stopPlaying() {
    clearInterval(playTimer);
    for (const button of controlBox.querySelectorAll("[data-play]")) button.ariaPressed = "false";
  }

  // ---- the drawing

  /**
   * Lights up the parts that share a word of their links with this one, and says what it is.
   *
   * @param {HTMLElement | null} part
   */
  function lightUp(part) {
    lit = part;
    const words = linksOf(part);
    root.classList.toggle("pl-pointing", words.length > 0);
    for (const other of picture.querySelectorAll("[data-link]")) {
      const isLit = linksOf(other).some((link) => words.includes(link));
      other.classList.toggle("pl-lit", isLit);
    }
    const said = part?.closest("[data-say]")?.getAttribute("data-say") ?? caption;
    if (line.textContent !== said) line.textContent = said;
  }

  /**
   * Moves the slider that a part names: data-set="NAME=OPTION".
   *
   * @param {EventTarget | null} target inside the part
   */
  function choose(target) {
    const part = /** @type {Element} */ (target).closest("[data-set]");
    const setting = part?.getAttribute("data-set");
    for (const { name, options, fixed } of controls) {
      const place = options.findIndex((option) => `${name}=${option}` === setting);
      if (place >= 0 && !fixed) ask(name, place);
    }
  }

  root.addEventListener("click", ({ target }) => {
    const button = /** @type {HTMLElement} */ (target);
    if (button.matches(".px-controls > [data-play]")) togglePlaying(button);
    else choose(target);
  });
  picture.addEventListener("keydown", ({ key, shiftKey, ctrlKey, target }) => {
    if (key === "Enter" && !shiftKey && !ctrlKey) choose(target);
  });
  pointing(root, PART, lightUp);

  /** Shows the variant of the drawing for a page of this width. What is alike stays, with the focus. */
  function showDrawing() {
    isNarrow = hasNarrowPage();
    root.classList.toggle("px-small", isNarrow);
    const [wide, narrow] = model.get("drawn").html.split(NARROW);
    const shown = isNarrow && narrow ? NARROW + narrow : wide;
    // A browser does not paint with a pattern of a cell that is out of view, so each has its own.
    show(picture, new Markup(shown.replace(/(#|id=")look-/g, `$1${patterns}-`)));
    keepTabStop();
    // The variant for a narrow page has no headline of its own: its name is one.
    const variant = find(picture, ".px-narrow");
    room.dataset.headline = variant?.ariaLabel ?? "";
    lightUp(lit?.isConnected ? lit : null);
    keepRoom();
  }

  /** Whether the page is narrow for a drawing. */
  function hasNarrowPage() {
    const { clientWidth } = controlBox; // as wide as what the root contains
    const said = Number(getComputedStyle(root).getPropertyValue("--narrow-page"));
    return clientWidth > 0 && clientWidth <= (said || NARROW_PAGE);
  }

  /** Keeps the room that the largest drawing and the longest line took: nothing below jumps. */
  function keepRoom() {
    for (const part of picture.querySelectorAll("[data-say]")) {
      const said = part.getAttribute("data-say") ?? "";
      if (said.length > longest.textContent.length) longest.textContent = said;
    }
    if (width !== room.clientWidth) {
      width = room.clientWidth;
      room.style.minHeight = "";
    }
    room.style.minHeight = `${room.getBoundingClientRect().height}px`;
  }

  // ---- what the model says

  /** An answer. */
  function onDrawn() {
    if (model.get("drawn").number < number) return;
    isWaiting = false;
    picture.classList.remove("px-waiting");
    showDrawing();
    if (sent !== values) send();
  }

  /** The values were set in Python, or in another view. */
  function onAsked() {
    const asked = model.get("asked");
    if (asked.number <= number) return;
    number = asked.number;
    values = asked.at;
    sent = values;
    controls = model.get("controls");
    showValues();
  }

  model.on("change:drawn", onDrawn);
  model.on("change:asked", onAsked);

  el.append(root);
  showValues();
  showDrawing();
  const resized = new ResizeObserver(() =>
    isNarrow === hasNarrowPage() ? keepRoom() : showDrawing(),
  );
  resized.observe(picture);
  return () => {
    clearInterval(playTimer);
    resized.disconnect();
    model.off("change:drawn", onDrawn);
    model.off("change:asked", onAsked);
  };
}

/**
 * The words of a part's links.
 *
 * @param {Element | null} part
 */
function linksOf(part) {
  return part?.getAttribute("data-link")?.split(" ") ?? [];
}

/**
 * An option as a slider shows it: a number with its thousands apart.
 *
 * @param {string | number} option
 */
function wordsOf(option) {
  return typeof option === "number" ? format(option) : option;
}

/**
 * @param {Control[]} controls
 * @param {string} caption
 * @returns {Markup}
 */
function pageTemplate(controls, caption) {
  const fixed = controls.filter((control) => control.fixed).map(({ name }) => spaced(name));
  const note = fixed.length ? `Run the notebook to change ${fixed.join(" and ")}.` : "";
  return html`<div class="pl-row pl-toolbar px-controls">${controls.map(controlTemplate)}
      <small class="px-note">${note}</small></div>
    <div class="px-room"><div class="px-picture"></div></div>
    <div class="px-line"><p class="px-longest" aria-hidden="true">${caption}</p>
      <p class="px-say" aria-live="polite">${caption}</p></div>`;
}

/**
 * @param {Control} control
 * @returns {Markup}
 */
function controlTemplate({ name, kind, fixed }) {
  const isSlider = kind === "slider";
  const play = html`<button class="pl-button" data-play="${name}" aria-label="play"></button>`;
  return html`<label class="pl-row px-${kind}">
      <span>${spaced(name)}</span>
      <input ${INPUTS[kind]} data-name="${name}" ${fixed ? "disabled" : ""}>
      ${isSlider ? html`<output></output>` : ""}</label>${isSlider ? play : ""}`;
}

/**
 * The name of a control as it is read.
 *
 * @param {string} name
 */
function spaced(name) {
  return name.replaceAll("_", " ");
}

export default { render };
