// Controls above a drawing that Python makes. One question to Python is open at a time, and the
// latest values win.

import { makeRoot } from "./keyboard.js";
import { find, findInput, html, withData } from "./markup.js";

/** @import { Markup } from "./markup.js" */

/**
 * A slider over `options`, a switch, or a field of text.
 *
 * @typedef {object} Control
 * @property {string} name
 * @property {"slider" | "switch" | "text"} kind
 * @property {string[]} options
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
const PLAY = "▶";
const PAUSE = "❚❚";
const FEWEST_TO_PLAY = 10; // options of a slider that has a play button
const BUSY_AFTER = 150; // milliseconds
const TYPING_ENDS_AFTER = 120; // milliseconds
/** @type {Record<string, number>} Parts that a key moves on. */
const ARROWS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** One view of a drawing and its controls. */
class ExploreView {
  /**
   * @param {ExploreModel} model
   * @param {HTMLElement} host
   */
  constructor(model, host) {
    this.model = model;
    /** @type {string} */
    this.caption = model.get("caption");
    /** @type {Control[]} */
    this.controls = model.get("controls");
    const { number, at } = model.get("asked");
    /** @type {number} The number of the last question. */
    this.number = number;
    /** @type {Record<string, Value>} What the controls show. */
    this.values = at;
    this.isWaiting = false;
    /** @type {Record<string, Value> | null} What to ask as soon as the answer is there. */
    this.wanted = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.typingTimer = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.busyTimer = undefined;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.playTimer = undefined;
    /** @type {string | null} The slider that plays. */
    this.playing = null;
    /** @type {string | null} The slider that was paused. */
    this.paused = null;
    /** @type {string | null} The link of the part under pointer or focus. */
    this.pointed = null;

    this.root = makeRoot("a drawing with controls");
    this.root.className = "pl-root px-root";
    this.root.innerHTML = this.page().source;
    this.controlBox = find(this.root, ".px-controls");
    this.picture = find(this.root, ".px-picture");
    this.said = find(this.root, ".px-say");
    this.busy = find(this.root, ".px-busy");
    host.append(this.root);
    this.showValues();
    this.onDrawn();
    this.listen();
  }

  /** Follows the reader and the model. */
  listen() {
    this.controlBox.addEventListener("input", (event) => this.onInput(event));
    this.root.addEventListener("click", (event) => this.onClick(event));
    this.picture.addEventListener("keydown", (event) => this.onKey(event));
    this.picture.addEventListener("pointerover", ({ target }) => {
      this.lightUp(partOf(target) ?? this.focusedPart());
    });
    this.picture.addEventListener("pointerleave", () => this.lightUp(this.focusedPart()));
    this.picture.addEventListener("focusin", ({ target }) => this.onFocus(target));
    this.picture.addEventListener("focusout", () => this.lightUp(null));
    this.onDrawnListener = () => this.onDrawn();
    this.onAskedListener = () => this.onAsked();
    this.model.on("change:drawn", this.onDrawnListener);
    this.model.on("change:asked", this.onAskedListener);
  }

  /** Stops what would go on without the page. */
  remove() {
    clearInterval(this.playTimer);
    clearTimeout(this.typingTimer);
    clearTimeout(this.busyTimer);
    if (this.onDrawnListener) this.model.off("change:drawn", this.onDrawnListener);
    if (this.onAskedListener) this.model.off("change:asked", this.onAskedListener);
  }

  /** @returns {Markup} */
  page() {
    return html`<div class="px-controls">${this.controls.map(controlTemplate)}
      <span class="px-busy" role="status"></span></div><div class="px-picture"></div>
      <p class="px-say" aria-live="polite">${this.caption}</p>`;
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
    input.setAttribute("aria-valuetext", options[place]);
    /** @type {HTMLOutputElement} */ (input.nextElementSibling).value = options[place];
    find(this.root, withData("play", name)).hidden = options.length < FEWEST_TO_PLAY;
  }

  /** @param {Event} event */
  onInput({ target }) {
    const input = /** @type {HTMLInputElement} */ (target);
    const name = input.dataset.name;
    if (name === undefined) return;
    this.stopPlaying();
    this.paused = null;
    clearTimeout(this.typingTimer);
    if (input.type === "text") {
      this.typingTimer = setTimeout(() => this.ask(name, input.value), TYPING_ENDS_AFTER);
    } else {
      this.ask(name, input.type === "checkbox" ? input.checked : Number(input.value));
    }
  }

  /**
   * Asks Python for the drawing with another value.
   *
   * @param {string} name
   * @param {Value} value
   */
  ask(name, value) {
    this.wanted = { ...this.values, ...this.wanted, [name]: value };
    this.values = this.wanted;
    this.showValues();
    if (!this.isWaiting) this.send();
  }

  /** Sends the values that are wanted. */
  send() {
    this.number += 1;
    this.isWaiting = true;
    clearTimeout(this.busyTimer);
    this.busyTimer = setTimeout(() => {
      this.busy.textContent = "computing …";
    }, BUSY_AFTER);
    this.model.set("asked", { number: this.number, at: this.wanted });
    this.wanted = null;
    this.model.save_changes();
  }

  // ---- playing

  /** @param {MouseEvent} event */
  onClick(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const name = target.dataset.play;
    if (name !== undefined && this.controlBox.contains(target)) this.togglePlaying(name);
    else this.choose(target.closest("[data-set]"));
  }

  /**
   * Plays a slider from its first option, or from where it was paused; or pauses it.
   *
   * @param {string} name
   */
  togglePlaying(name) {
    const wasPlaying = this.playing === name;
    const wasPaused = this.paused === name;
    this.stopPlaying();
    this.paused = wasPlaying ? name : null;
    if (wasPlaying) return;
    this.playing = name;
    find(this.root, withData("play", name)).textContent = PAUSE;
    const last = this.lastOption(name);
    if (!wasPaused || this.values[name] === last) this.ask(name, 0);
    const interval = Math.max(150, Math.min(600, 9000 / last));
    this.playTimer = setInterval(() => this.playOn(name), interval);
  }

  /**
   * Goes to the next option. It waits for the drawing of the one before.
   *
   * @param {string} name
   */
  playOn(name) {
    const place = Number(this.values[name]);
    if (!this.root.isConnected || place >= this.lastOption(name)) this.stopPlaying();
    else if (!this.isWaiting) this.ask(name, place + 1);
  }

  stopPlaying() {
    clearInterval(this.playTimer);
    this.playing = null;
    for (const button of this.root.querySelectorAll("[data-play]")) button.textContent = PLAY;
  }

  /**
   * @param {string} name
   * @returns {number}
   */
  lastOption(name) {
    const control = this.controls.find((one) => one.name === name);
    return control ? control.options.length - 1 : 0;
  }

  // ---- the drawing

  /** The parts of the drawing that say, light up or set something. */
  parts() {
    return /** @type {HTMLElement[]} */ ([...this.picture.querySelectorAll(PART)]);
  }

  /** The part that has the focus, or null. */
  focusedPart() {
    const page = /** @type {Document} */ (this.root.getRootNode());
    const part = partOf(page.activeElement);
    return part && this.picture.contains(part) ? part : null;
  }

  /**
   * Makes a part the only Tab stop of the drawing.
   *
   * @param {number} place
   */
  setTabStop(place) {
    this.parts().forEach((part, i) => {
      part.setAttribute("tabindex", i === place ? "0" : "-1");
    });
  }

  /** @param {EventTarget | null} target */
  onFocus(target) {
    const part = partOf(target);
    if (!part) return;
    this.setTabStop(this.parts().indexOf(part));
    this.lightUp(part);
  }

  /**
   * Lights up the parts that share a word of their links with this one, and says what it is.
   *
   * @param {HTMLElement | null} part
   */
  lightUp(part) {
    this.pointed = part?.dataset.link ?? null;
    const words = this.pointed?.split(" ") ?? [];
    this.root.classList.toggle("pl-pointing", Boolean(this.pointed));
    for (const other of this.picture.querySelectorAll("[data-link]")) {
      const links = other.getAttribute("data-link")?.split(" ") ?? [];
      const isLit = links.some((link) => words.includes(link));
      other.classList.toggle("pl-lit", isLit);
    }
    const said = part?.closest("[data-say]")?.getAttribute("data-say") ?? this.caption;
    if (this.said.textContent !== said) this.said.textContent = said;
  }

  /**
   * Sets the control that a part names: data-set="NAME=VALUE".
   *
   * @param {Element | null} part
   */
  choose(part) {
    const setting = part?.getAttribute("data-set") ?? "";
    const [name, value] = setting.split(/=(.*)/s);
    const control = this.controls.find((one) => one.name === name);
    if (!control || value === undefined) return;
    if (control.kind === "switch") this.ask(name, value === "true");
    else if (control.kind === "text") this.ask(name, value);
    else if (control.options.includes(value)) this.ask(name, control.options.indexOf(value));
  }

  /**
   * Arrow keys move the focus from part to part, and Enter chooses. Keys in an input of the drawing
   * are the input's own.
   *
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    const part = partOf(event.target);
    if (!part || isInput(event.target)) return;
    const parts = this.parts();
    const next = parts[parts.indexOf(part) + ARROWS[event.key]];
    if (next) {
      event.preventDefault();
      next.focus();
    }
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey) this.choose(part);
  }

  // ---- what the model says

  /** An answer: shows the drawing, with the focus and the light where they were. */
  onDrawn() {
    const drawn = this.model.get("drawn");
    if (drawn.number < this.number) return;
    const focused = this.focusedPart();
    const place = focused ? this.parts().indexOf(focused) : -1;
    const pointed = this.pointed;
    this.isWaiting = false;
    clearTimeout(this.busyTimer);
    this.busy.textContent = "";
    this.picture.innerHTML = drawn.html;
    this.setTabStop(Math.max(place, 0));
    if (focused) this.parts()[place]?.focus();
    else this.lightUp(this.partWithLink(pointed));
    if (this.wanted) this.send();
  }

  /**
   * @param {string | null} link
   * @returns {HTMLElement | null}
   */
  partWithLink(link) {
    if (link === null) return null;
    return this.parts().find((part) => part.dataset.link === link) ?? null;
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
 * The part of the drawing that a node belongs to.
 *
 * @param {EventTarget | null} node
 * @returns {HTMLElement | null}
 */
function partOf(node) {
  return node instanceof Element ? node.closest(PART) : null;
}

/**
 * Whether a node takes keys for itself.
 *
 * @param {EventTarget | null} node
 * @returns {boolean}
 */
function isInput(node) {
  return node instanceof Element && node.matches("input, select, textarea");
}

/**
 * @param {Control} control
 * @returns {Markup}
 */
function controlTemplate({ name, kind }) {
  const play = html`<button class="pl-button" data-play="${name}"
    aria-label="play">${PLAY}</button>`;
  return html`
    <label class="px-${kind}"><span>${name.replaceAll("_", " ")}</span>
      ${inputTemplate(name, kind)}
    </label>${kind === "slider" ? play : ""}`;
}

/**
 * @param {string} name
 * @param {Control["kind"]} kind
 * @returns {Markup}
 */
function inputTemplate(name, kind) {
  switch (kind) {
    case "text":
      return html`<input type="text" data-name="${name}" spellcheck="false">`;
    case "switch":
      return html`<input type="checkbox" role="switch" data-name="${name}">`;
    default:
      return html`<input type="range" class="pl-scrubber" data-name="${name}"><output></output>`;
  }
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
