// Controls above a drawing that Python makes, or that a list holds where there is no Python
// (frames.js). One question is open at a time, and the latest values win.

import { makeRoot, pointing, roving } from "./keyboard.js";
import { find, findInput, html, listenTo, Markup, show, withData } from "./markup.js";
import { format } from "./words.js";

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
  text: html`type="text" class="pl-amount" spellcheck="false" data-own-enter`,
};

/** One view of a drawing and its controls. */
class ExploreView {
  isWaiting = false;
  /** Whether to ask again as soon as the answer is there. */
  hasMore = false;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  playTimer = undefined;
  /** @type {HTMLElement | null} The part that lights up. */
  lit = null;
  /** What the names of this drawing's patterns begin with. */
  patterns = `look-${Math.random().toString(36).slice(2)}`;
  /** Whether the page is narrow. */
  isNarrow = false;
  /** The width of the drawing, in pixels. */
  width = 0;

  /**
   * @param {ExploreModel} model
   * @param {HTMLElement} host
   */
  constructor(model, host) {
    this.model = model;
    /** @type {string} */
    this.caption = model.get("caption").replace(/\bPoint at\b/, "Point at (or tap)");
    /** @type {Control[]} */
    this.controls = model.get("controls");
    const { number, at } = model.get("asked");
    /** @type {number} The number of the last question. */
    this.number = number;
    /** @type {Record<string, Value>} What the controls show. */
    this.values = at;
    this.root = makeRoot("a drawing with controls");
    this.root.className = "pl-root px-root";
    this.root.innerHTML = this.page().source;
    this.controlBox = find(this.root, ".px-controls");
    this.room = find(this.root, ".px-room");
    this.picture = find(this.root, ".px-picture");
    this.said = find(this.root, ".px-say");
    this.longest = find(this.root, ".px-longest");
    host.append(this.root);
    this.keepTabStop = roving(this.picture, PART, () => 1);
    this.showValues();
    this.onDrawn();
    this.listen();
  }

  /** Follows the reader and the model. */
  listen() {
    this.controlBox.addEventListener("input", (event) => this.onInput(event));
    this.root.addEventListener("click", (event) => this.onClick(event));
    this.picture.addEventListener("keydown", (event) => this.onKey(event));
    pointing(this.picture, PART, (part) => this.lightUp(part));
    this.root.addEventListener("pointerdown", ({ target }) => {
      if (!partOf(target)) this.lightUp(null);
    });
    this.resized = new ResizeObserver(() => this.onResize());
    this.resized.observe(this.picture);
    this.stopListening = listenTo(this.model, {
      "change:drawn": () => this.onDrawn(),
      "change:asked": () => this.onAsked(),
    });
  }

  /** Stops what would go on without the page. */
  remove() {
    clearInterval(this.playTimer);
    this.resized?.disconnect();
    this.stopListening?.();
  }

  /** @returns {Markup} */
  page() {
    return html`<div class="px-controls">${this.controls.map(controlTemplate)}
      ${noteTemplate(this.controls)}</div>
      <div class="px-room"><div class="px-picture"></div></div>
      <div class="px-line"><p class="px-longest" aria-hidden="true">${this.caption}</p>
        <p class="px-say" aria-live="polite">${this.caption}</p></div>`;
  }

  // ---- controls

  /** Makes the controls show the values. */
  showValues() {
    for (const control of this.controls) {
      const input = findInput(this.root, withData("name", control.name));
      const value = this.values[control.name];
      if (control.kind === "slider") this.showSlider(control, input, Number(value));
      else if (control.kind === "switch") input.checked = Boolean(value);
      else if (input.value !== String(value)) input.value = String(value);
    }
  }

  /**
   * @param {Control} control
   * @param {HTMLInputElement} input
   * @param {number} place
   */
  showSlider({ name, options }, input, place) {
    input.max = String(options.length - 1);
    input.value = String(place);
    const words = options.map(wordsOf);
    input.setAttribute("aria-valuetext", words[place]);
    const output = /** @type {HTMLOutputElement} */ (input.nextElementSibling);
    output.value = words[place];
    output.style.minWidth = `${Math.max(...words.map((word) => word.length)) + 1}ch`;
    const play = find(this.root, withData("play", name));
    play.hidden = options.length < FEWEST_TO_PLAY || input.disabled;
  }

  /** @param {Event} event */
  onInput({ target }) {
    const input = /** @type {HTMLInputElement} */ (target);
    const name = input.dataset.name;
    if (name === undefined) return;
    this.stopPlaying();
    /** @type {Record<string, Value>} */
    const values = { text: input.value, checkbox: input.checked, range: Number(input.value) };
    this.ask(name, values[input.type]);
  }

  /**
   * Asks for the drawing with another value, now or after the answer to the open question.
   *
   * @param {string} name
   * @param {Value} value which the control shows at once
   */
  ask(name, value) {
    this.values = { ...this.values, [name]: value };
    this.showValues();
    if (this.isWaiting) this.hasMore = true;
    else this.send();
  }

  /** Sends the values. */
  send() {
    this.number += 1;
    this.isWaiting = true;
    this.hasMore = false;
    this.picture.classList.add("px-waiting");
    this.model.set("asked", { number: this.number, at: this.values });
    this.model.save_changes();
  }

  // ---- playing

  /** @param {MouseEvent} event */
  onClick(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.matches(".px-controls > [data-play]")) this.togglePlaying(target);
    else this.choose(target.closest("[data-set]"));
  }

  /**
   * Plays a slider from where it is, or once more from its first option; or pauses it.
   *
   * @param {HTMLElement} button
   */
  togglePlaying(button) {
    const wasPlaying = button.ariaPressed === "true";
    this.stopPlaying();
    if (wasPlaying) return;
    button.ariaPressed = "true";
    const { play: name = "" } = button.dataset;
    const last = Number(findInput(this.root, withData("name", name)).max);
    if (this.values[name] === last) this.ask(name, 0);
    const interval = Math.max(SHORTEST_FRAME, Math.min(LONGEST_FRAME, PLAY_TIME / (last + 1)));
    this.playTimer = setInterval(() => {
      const place = Number(this.values[name]);
      if (!this.root.isConnected || place >= last) this.stopPlaying();
      else if (!this.isWaiting) this.ask(name, place + 1); // not before the drawing is there
    }, interval);
  }

  stopPlaying() {
    clearInterval(this.playTimer);
    for (const button of this.controlBox.querySelectorAll("[data-play]"))
      button.ariaPressed = "false";
  }

  // ---- the drawing

  /**
   * Lights up the parts that share a word of their links with this one, and says what it is.
   *
   * @param {HTMLElement | null} part
   */
  lightUp(part) {
    this.lit = part;
    const words = part?.dataset.link?.split(" ") ?? [];
    this.root.classList.toggle("pl-pointing", words.length > 0);
    for (const other of this.picture.querySelectorAll("[data-link]")) {
      const links = other.getAttribute("data-link")?.split(" ") ?? [];
      const isLit = links.some((link) => words.includes(link));
      other.classList.toggle("pl-lit", isLit);
    }
    const said = part?.closest("[data-say]")?.getAttribute("data-say") ?? this.caption;
    if (this.said.textContent !== said) this.said.textContent = said;
  }

  /**
   * Moves the slider that a part names: data-set="NAME=OPTION".
   *
   * @param {Element | null} part
   */
  choose(part) {
    const setting = part?.getAttribute("data-set");
    for (const { name, options, fixed } of this.controls) {
      const place = options.findIndex((option) => `${name}=${option}` === setting);
      if (place >= 0 && !fixed) this.ask(name, place);
    }
  }

  /**
   * Enter chooses, as a click does. Other keys are left alone.
   *
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey) {
      this.choose(partOf(event.target));
    }
  }

  // ---- what the model says

  /** An answer: shows the drawing. What is like it was stays, with the focus. */
  onDrawn() {
    const drawn = this.model.get("drawn");
    if (drawn.number < this.number) return;
    this.isWaiting = false;
    this.picture.classList.remove("px-waiting");
    this.showDrawing(drawn.html);
    if (this.hasMore) this.send();
  }

  /**
   * Shows the variant of a drawing that is for a page of this width.
   *
   * @param {string} drawing
   */
  showDrawing(drawing) {
    this.isNarrow = this.hasNarrowPage();
    this.root.classList.toggle("px-small", this.isNarrow);
    const at = drawing.indexOf(NARROW);
    const [wide, narrow] = at > 0 ? [drawing.slice(0, at), drawing.slice(at)] : [drawing, ""];
    const isVariant = this.isNarrow && narrow !== "";
    const shown = isVariant ? narrow : wide;
    // A browser does not paint with a pattern of a cell that is out of view, so each has its own.
    show(this.picture, new Markup(shown.replace(/(#|id=")look-/g, `$1${this.patterns}-`)));
    this.keepTabStop();
    this.lightUp(this.lit?.isConnected ? this.lit : null);
    // The variant for a narrow page has no headline of its own: its name is one.
    const svg = isVariant ? find(this.picture, "svg") : null;
    this.room.dataset.headline = svg?.getAttribute("aria-label") ?? "";
    this.keepRoom();
  }

  /** Whether the page is narrow for a drawing. */
  hasNarrowPage() {
    const { clientWidth } = this.controlBox; // as wide as what the root contains
    const said = Number(getComputedStyle(this.root).getPropertyValue("--narrow-page"));
    return clientWidth > 0 && clientWidth <= (said || NARROW_PAGE);
  }

  /** Shows the other variant of the drawing when the page has become narrow or wide. */
  onResize() {
    if (this.isNarrow === this.hasNarrowPage()) this.keepRoom();
    else this.showDrawing(this.model.get("drawn").html);
  }

  /** Keeps the room that the largest drawing and the longest line took: nothing below jumps. */
  keepRoom() {
    for (const part of this.picture.querySelectorAll("[data-say]")) {
      const said = part.getAttribute("data-say") ?? "";
      if (said.length > (this.longest.textContent ?? "").length) this.longest.textContent = said;
    }
    if (this.width !== this.room.clientWidth) {
      this.width = this.room.clientWidth;
      this.room.style.minHeight = "";
    }
    this.room.style.minHeight = `${this.room.getBoundingClientRect().height}px`;
  }

  /** The values were set in Python, or in another view. */
  onAsked() {
    const { number, at } = this.model.get("asked");
    if (number <= this.number) return;
    this.number = number;
    this.values = at;
    this.controls = this.model.get("controls");
    this.showValues();
  }
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
 * The part of the drawing that a node belongs to.
 *
 * @param {EventTarget | null} node
 * @returns {HTMLElement | null}
 */
function partOf(node) {
  return node instanceof Element ? node.closest(PART) : null;
}

/**
 * @param {Control} control
 * @returns {Markup}
 */
function controlTemplate({ name, kind, fixed }) {
  const isSlider = kind === "slider";
  const play = html`<button class="pl-button" data-play="${name}" aria-label="play"></button>`;
  return html`<label class="px-${kind} ${fixed ? "px-fixed" : ""}">
      <span>${name.replaceAll("_", " ")}</span>
      <input ${INPUTS[kind]} data-name="${name}" ${fixed ? "disabled" : ""}>
      ${isSlider ? html`<output></output>` : ""}</label>${isSlider ? play : ""}`;
}

/**
 * Says which controls cannot be moved here.
 *
 * @param {Control[]} controls
 * @returns {Markup | string}
 */
function noteTemplate(controls) {
  const names = controls.filter(({ fixed }) => fixed).map(({ name }) => name.replaceAll("_", " "));
  if (!names.length) return "";
  return html`<small class="px-note">Run the notebook to change ${names.join(" and ")}.</small>`;
}

/**
 * @param {{model: ExploreModel, el: HTMLElement}} context
 * @returns {() => void} what removes the view
 */
function render({ model, el }) {
  const view = new ExploreView(model, el);
  return () => view.remove();
}

export default { render };
