// The stage plays a recording, see docs/trace.md: answers on the left, blocks beside them, block
// tables below.

import { blockInside, drawCopyArrows, heldTokens } from "./blocks.js";
import { makeRoot, roving } from "./keyboard.js";
import { lookOf } from "./looks.js";
import { classes, find, findInput, html, show, withData } from "./markup.js";
import { describeBlock, whatHappened } from "./narration.js";
import { showList } from "./node_list.js";
import { Replay } from "./replay.js";
import { wordRuns } from "./word_runs.js";
import { format, percent, plural } from "./words.js";

/**
 * @import { Owner } from "./blocks.js"
 * @import { Markup } from "./markup.js"
 * @import { NodeTemplate } from "./node_list.js"
 * @import { Recording, SequenceState, State } from "./replay.js"
 * @import { WordRun } from "./word_runs.js"
 */

/**
 * What a stage asks of its model, which is a widget in a notebook and a plain object on a page.
 *
 * It gets `recorded`, a recording; `step`, or -1 to play from the first; `live`: more steps will
 * follow; and, where the page is to follow closely, `lag`: the seconds it may be late.
 *
 * @typedef {object} StageModel
 * @property {(name: string) => any} get
 * @property {(event: string, listener: () => void) => void} on
 * @property {(event: string, listener: () => void) => void} off
 */

const STEPS_A_SECOND = [1, 2, 4, 8, 16, 32]; // what the reader can choose
const USUAL_SPEED = 8;
const FASTEST_WITH_FALLING_WORDS = 8;
const PICTURES_A_SECOND = 60; // an eye does not see more
const USUAL_LAG = 8; // seconds
const MOST_FALLING_WORDS = 4; // in one step
const MANY_TEXTS = 8; // from here on there is room for two lines of each
const RUNS_OF_MANY = 4; // what is shown of each then
const AT_THE_END = 1e6; // pixels, below the last line of any text

/** @type {Record<string, string>} */
const STATE_WORDS = {
  waiting: "waits",
  running: "writes",
  swapped: "parked on the host",
  stop: "done",
  length: "done, at its limit",
  abort: "aborted",
  dropped: "dropped",
};

/** One view of a recording. */
class StageView {
  /**
   * @param {StageModel} model
   * @param {HTMLElement} host
   */
  constructor(model, host) {
    this.model = model;
    this.root = makeRoot("what the engine did, step by step");
    this.keepTabStops = roving(this.root);
    this.reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.isPlaying = false;
    this.speed = USUAL_SPEED; // steps a second
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {number | null} The block under pointer or focus. */
    this.pointed = null;
    /** @type {WeakMap<Element, number>} Characters of each text when it was last scrolled. */
    this.scrolledAt = new WeakMap();
    this.step = 0;
    /** @type {State | null} */
    this.before = null;

    /** @type {Recording} */
    this.recording = model.get("recorded");
    this.replay = new Replay(this.recording);
    this.state = this.replay.stateAfter(0);
    host.append(this.root);
    this.listen();
    this.restart();
  }

  /** Follows the reader and the model. */
  listen() {
    this.root.addEventListener("click", (event) => this.onClick(event));
    this.root.addEventListener("input", (event) => this.onInput(event));
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    for (const event of ["pointerover", "focusin"]) {
      this.root.addEventListener(event, ({ target }) => this.point(blockOf(target)));
    }
    for (const event of ["pointerleave", "focusout"]) {
      this.root.addEventListener(event, () => this.point(null));
    }
    /** @type {Record<string, () => void>} */
    this.modelListeners = {
      "change:recorded": () => this.onRecording(),
      "change:step": () => this.onStep(),
      "change:live": () => this.paint(),
    };
    for (const [event, listener] of Object.entries(this.modelListeners)) {
      this.model.on(event, listener);
    }
    this.resized = new ResizeObserver(() => this.paint());
    this.resized.observe(this.root);
  }

  /** Stops what would go on without the page. */
  remove() {
    clearTimeout(this.timer);
    this.resized?.disconnect();
    for (const [event, listener] of Object.entries(this.modelListeners ?? {})) {
      this.model.off(event, listener);
    }
  }

  // ---- what the reader does

  /** @param {MouseEvent} event */
  onClick({ target }) {
    const button = /** @type {Element} */ (target).closest("[data-op]");
    const op = button?.getAttribute("data-op");
    if (op === "play") {
      if (!this.isPlaying && this.step === this.lastStep && !this.isLive) this.goTo(0);
      this.play(!this.isPlaying);
    }
    if (op === "back") this.stopAt(this.step - 1);
    if (op === "on") this.stopAt(this.step + 1);
  }

  /** @param {Event} event */
  onInput(event) {
    const target = /** @type {HTMLInputElement} */ (event.target);
    if (target.matches(".pl-scrubber")) this.stopAt(Number(target.value));
    if (target.matches(".ps-rate")) this.speed = Number(target.value);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const target = /** @type {Element} */ (event.target);
    if (event.key !== " " || target.matches("button, select")) return;
    event.preventDefault();
    this.play(!this.isPlaying);
  }

  /**
   * Lights up a block.
   *
   * @param {number | null} blockId
   */
  point(blockId) {
    if (blockId === this.pointed) return;
    this.pointed = blockId;
    this.lightUp();
  }

  // ---- what the model says

  /** A recording that grew, or another one. */
  onRecording() {
    /** @type {Recording} */
    const recording = this.model.get("recorded");
    const grew = beginsLike(recording, this.recording);
    this.recording = recording;
    if (grew) {
      this.replay.extend(recording);
      this.paint();
    } else {
      this.replay = new Replay(recording);
      this.restart();
    }
  }

  /** The model names a step. */
  onStep() {
    if (this.model.get("step") !== this.step) this.restart();
  }

  // ---- playing

  get lastStep() {
    return this.replay.length - 1;
  }

  /** Whether more steps will follow. */
  get isLive() {
    return Boolean(this.model.get("live"));
  }

  /** Shows the step that the model names, or plays from the first one. */
  restart() {
    const step = this.model.get("step");
    const plays = step < 0;
    if (!plays) this.goTo(step);
    else if (this.reducedMotion && !this.isLive) this.goTo(this.lastStep);
    else this.goTo(0);
    this.play(plays && !this.reducedMotion && (this.lastStep > 0 || this.isLive));
  }

  /** @param {number} step */
  stopAt(step) {
    this.play(false);
    this.goTo(step);
  }

  /** @param {boolean} on */
  play(on) {
    clearTimeout(this.timer);
    this.isPlaying = on;
    if (on) {
      const speed = this.currentSpeed();
      const stride = Math.max(1, Math.round(speed / PICTURES_A_SECOND));
      this.timer = setTimeout(() => this.playOn(stride), (1000 * stride) / speed);
    }
    this.paint();
  }

  /**
   * Steps a second: the chosen ones, or more while the engine is so fast that the page falls back.
   *
   * @returns {number}
   */
  currentSpeed() {
    if (!this.isLive) return this.speed;
    const stepsBehind = this.lastStep - this.step;
    return Math.max(this.speed, stepsBehind / (this.model.get("lag") ?? USUAL_LAG));
  }

  /** @param {number} stride steps until the next picture */
  playOn(stride) {
    if (this.step < this.lastStep) this.goTo(this.step + stride);
    this.play(this.step < this.lastStep || this.isLive);
  }

  /** @param {number} step */
  goTo(step) {
    this.step = Math.max(0, Math.min(this.lastStep, step));
    if (this.step === 0) this.before = null;
    else if (this.state.step === this.step - 1) this.before = this.state;
    else this.before = this.replay.stateAfter(this.step - 1);
    this.state = this.replay.stateAfter(this.step);
    this.paint();
    const isSlow = this.speed <= FASTEST_WITH_FALLING_WORDS;
    if (this.isPlaying && isSlow && !this.reducedMotion) this.dropWords();
  }

  /** Lets the words that got their slots in this step fall into their blocks. */
  dropWords() {
    const running = [...this.state.texts.values()].filter(({ state }) => state === "running");
    for (const sequence of running.slice(0, MOST_FALLING_WORDS)) this.dropWord(sequence);
  }

  /** @param {SequenceState} sequence */
  dropWord({ name, blocks, tokens, words }) {
    const word = words[tokens - 1]?.trim();
    const block = this.root.querySelector(`.pl-block${withData("block", blocks.at(-1) ?? "")}`);
    const held = [...this.root.querySelectorAll(`${withData("text", name)} .ps-held`)].at(-1);
    const start = [...(held?.getClientRects() ?? [])].at(-1);
    if (!word || !block || !start) return;
    const frame = this.root.getBoundingClientRect();
    const end = block.getBoundingClientRect();
    const falling = document.createElement("span");
    falling.className = "ps-drop";
    falling.textContent = word;
    falling.style.left = `${start.right - frame.left}px`;
    falling.style.top = `${start.top - frame.top}px`;
    find(this.root, ".ps-air").append(falling);
    const x = end.left + end.width / 2 - start.right;
    const transform = `translate(${x}px, ${end.top - start.top}px) scale(0.4)`;
    const frames = [{ opacity: 0.9 }, { opacity: 0.2, transform }];
    const fall = falling.animate(frames, { duration: 420, easing: "ease-in" });
    fall.onfinish = () => falling.remove();
  }

  // ---- the page

  /** Draws the state. */
  paint() {
    const shown = [...this.state.texts.values()].filter(({ state }) => state !== "dropped");
    const size = classes({
      many: this.recording.drawn > 128,
      pointing: this.pointed !== null,
      playing: this.isPlaying,
    });
    this.root.className = `pl-root ps-root ${size}`;
    show(this.root, this.page(shown.length));
    findInput(this.root, ".pl-scrubber").value = String(this.step);
    this.paintTexts(shown);
    this.paintBlocks(shown);
    this.paintTables(shown.filter(({ blocks }) => blocks.length));
    drawCopyArrows(this.root, this.state.now.copies ?? []);
    this.lightUp();
    this.keepTabStops();
    this.root.dataset.at = String(this.step);
  }

  /**
   * The page without texts, blocks and tables.
   *
   * @param {number} numTexts
   * @returns {Markup}
   */
  page(numTexts) {
    const { drawn, num_blocks: numBlocks } = this.recording;
    const sentence = whatHappened(this.state, this.before);
    const spoken = this.isPlaying ? "" : `${this.position}. ${sentence}`;
    return html`
      <p class="pl-prompt">${sentence}</p>
      ${this.controls()}
      <div class="ps-main">
        <div class="ps-texts" data-own tabindex="0" role="group" aria-label="answers"
          style="--rows: ${rowsOfEach(numTexts)}"></div>
        <div class="ps-side"><div class="pl-canvas">
            <div class="pl-blocks" role="grid" aria-label="physical blocks"
              style="--columns: ${this.columns}" data-own></div>
            <svg class="pl-arrows" aria-hidden="true" data-own></svg></div>
          <p class="pl-detail" data-own></p>
          <div class="pl-tables" role="grid" aria-label="block tables" data-own></div>
          <div class="pl-stats">${this.stats()}</div></div></div>
      <p class="ps-more" ${numBlocks > drawn ? "" : "hidden"}>Drawn are the first
        ${plural(drawn, "block")} of ${format(numBlocks)}; the counters are of all.</p>
      <div class="ps-air" aria-hidden="true" data-own></div>
      <div class="pl-spoken" aria-live="polite">${spoken}</div>`;
  }

  get position() {
    return `Step ${this.step} of ${this.lastStep}`;
  }

  /** Blocks in a row. */
  get columns() {
    const { drawn } = this.recording;
    if (drawn <= 8) return 8;
    return drawn <= 128 ? 16 : 32;
  }

  /** @returns {Markup} */
  controls() {
    const speeds = STEPS_A_SECOND.map((n) => {
      const selected = n === USUAL_SPEED ? "selected" : "";
      return html`<option value="${n}" ${selected}>${plural(n, "step")} a second</option>`;
    });
    return html`<div class="ps-controls">
        <span class="pl-group" role="toolbar" aria-label="playback">
          ${controlButton("play", this.playLabel)}
          ${controlButton("back", "‹", "one step back")}
          ${controlButton("on", "›", "one step on")}</span>
        <label><span class="pl-step">${this.position}</span>
          <input type="range" class="pl-scrubber" aria-label="step" min="0"
            max="${Math.max(1, this.lastStep)}" aria-valuetext="${this.position}"></label>
        <select class="pl-select ps-rate" aria-label="speed">${speeds}</select></div>`;
  }

  get playLabel() {
    if (this.isPlaying) return "❚❚ Pause";
    return this.step === this.lastStep && !this.isLive ? "↻ Again" : "▶ Play";
  }

  /** @returns {Markup[]} */
  stats() {
    const { counts, used, cached, copied } = this.state;
    const shared = counts.filter((count) => count > 1).length;
    const free = this.recording.num_blocks - used;
    return Object.entries({ used, free, shared, copied, cached }).map(([name, n]) => {
      return html`<div class="pl-stat">
            <b data-stat="${name}">${format(n)}</b><span>${name}</span></div>`;
    });
  }

  /** @param {SequenceState[]} texts */
  paintTexts(texts) {
    const box = find(this.root, ".ps-texts");
    showList(box, texts, (text) => this.textTemplate(text, texts.length));
    for (const words of this.root.querySelectorAll(".ps-words")) {
      const length = words.textContent?.length ?? 0;
      if (this.scrolledAt.get(words) !== length) words.scrollTop = AT_THE_END;
      this.scrolledAt.set(words, length);
    }
  }

  /**
   * @param {SequenceState} text
   * @param {number} numTexts
   * @returns {NodeTemplate}
   */
  textTemplate(text, numTexts) {
    const { color, pattern } = lookOf(text.look);
    const runs = wordRuns(text, this.state, this.recording.block_size);
    const shownRuns = numTexts > MANY_TEXTS ? runs.slice(-RUNS_OF_MANY) : runs;
    const inside = html`
        <p class="ps-head"><i class="pl-swatch pl-hatch pl-p${pattern}"></i><b>${text.name}</b>
          <span>${STATE_WORDS[text.state] ?? text.state}</span></p>
        <p class="ps-words" tabindex="0">${shownRuns.map(runTemplate)}</p>`;
    const className = `ps-text ps-${text.state}`;
    return { class: className, style: `--c: ${color}`, "data-text": text.name, inside };
  }

  /** @param {SequenceState[]} texts */
  paintBlocks(texts) {
    const box = find(this.root, ".pl-blocks");
    const owners = this.ownersOfBlocks(texts);
    const rows = rowsOfBlocks(this.recording.drawn, this.columns);
    showList(box, rows, () => ({ class: "pl-row", role: "row" }));
    const { copies = [], hits = [], counts: changed = {} } = this.state.now;
    const marks = {
      sources: new Set(copies.map(([source]) => source)),
      destinations: new Set(copies.map(([, destination]) => destination)),
      hits: new Set(hits),
    };
    /** @param {number} blockId */
    const namesOf = (blockId) => classes(this.blockClasses(blockId, marks, blockId in changed));
    /** @param {number} blockId */
    const signature = (blockId) => {
      const held = owners[blockId].map((owner) => owner.name + owner.held);
      return `${blockId} ${this.state.counts[blockId]} ${held} ${namesOf(blockId)}`;
    };
    rows.forEach((row, r) => {
      showList(
        box.children[r],
        row,
        (blockId) => this.blockTemplate(blockId, owners[blockId], namesOf(blockId)),
        { tag: "button", signature },
      );
    });
  }

  /**
   * The sequences that list each block.
   *
   * @param {SequenceState[]} texts
   * @returns {Owner[][]}
   */
  ownersOfBlocks(texts) {
    const { drawn, block_size: blockSize } = this.recording;
    /** @type {Owner[][]} */
    const owners = Array.from({ length: drawn }, () => []);
    for (const { name, blocks, tokens, look } of texts) {
      blocks.forEach((blockId, index) => {
        const held = heldTokens(tokens, index, blockSize);
        owners[blockId]?.push({ name, ...lookOf(look), held });
      });
    }
    return owners;
  }

  /**
   * @param {number} blockId
   * @param {{sources: Set<number>, destinations: Set<number>, hits: Set<number>}} marks
   * @param {boolean} changed whether its count changed in this step
   * @returns {Record<string, boolean>}
   */
  blockClasses(blockId, marks, changed) {
    const count = this.state.counts[blockId];
    return {
      block: true,
      used: count > 0,
      empty: count === 0,
      shared: count > 1,
      kept: count === 0 && this.state.kept[blockId] > 0,
      source: marks.sources.has(blockId),
      destination: marks.destinations.has(blockId),
      found: marks.hits.has(blockId),
      fresh: this.isPlaying && count === 1 && changed,
    };
  }

  /**
   * @param {number} blockId
   * @param {Owner[]} owners
   * @param {string} className
   * @returns {NodeTemplate}
   */
  blockTemplate(blockId, owners, className) {
    const count = this.state.counts[blockId];
    const names = owners.map(({ name }) => name);
    const holders = count ? names.join(" and ") || "held" : "free";
    return {
      type: "button",
      role: "gridcell",
      class: className,
      "data-block": blockId,
      "data-count": count,
      "data-owners": names.join(" "),
      "aria-label": `block ${blockId}, ${holders}`,
      inside: blockInside(blockId, count, owners, this.recording.block_size),
    };
  }

  /** @param {SequenceState[]} texts those with blocks */
  paintTables(texts) {
    const box = find(this.root, ".pl-tables");
    showList(box, texts, tableTemplate);
    texts.forEach((text, row) => {
      const cells = text.blocks.map((blockId, index) => ({ blockId, index }));
      const strip = find(box.children[row], ".pl-strip");
      showList(strip, cells, (cell) => this.cellTemplate(text, cell), { tag: "button" });
    });
  }

  /**
   * @param {SequenceState} text
   * @param {{blockId: number, index: number}} cell
   * @returns {NodeTemplate}
   */
  cellTemplate({ name, tokens }, { blockId, index }) {
    const blockSize = this.recording.block_size;
    const width = percent(heldTokens(tokens, index, blockSize), blockSize);
    return {
      type: "button",
      role: "gridcell",
      class: "pl-cell",
      "data-block": blockId,
      "aria-label": `${name}, logical block ${index}: physical block ${blockId}`,
      inside: html`<i style="width: ${width}"></i><span>${blockId}</span>`,
    };
  }

  /** Lights up every node of the block that is pointed at, and says what it holds. */
  lightUp() {
    for (const node of this.root.querySelectorAll(".pl-lit")) node.classList.remove("pl-lit");
    this.root.classList.toggle("pl-pointing", this.pointed !== null);
    if (this.pointed !== null) {
      const nodes = this.root.querySelectorAll(withData("block", this.pointed));
      for (const node of nodes) node.classList.add("pl-lit");
    }
    const sentence = describeBlock(this.state, this.pointed, this.recording.block_size);
    find(this.root, ".pl-detail").textContent = sentence;
  }
}

/**
 * Whether a recording begins with all the steps of another one.
 *
 * @param {Recording} recording
 * @param {Recording} known
 * @returns {boolean}
 */
function beginsLike(recording, known) {
  if (recording.steps.length < known.steps.length) return false;
  return JSON.stringify(recording.steps[0]) === JSON.stringify(known.steps[0]);
}

/**
 * The block of the node under pointer or focus.
 *
 * @param {EventTarget | null} target
 * @returns {number | null}
 */
function blockOf(target) {
  const node = /** @type {Element} */ (target).closest("[data-block]");
  return node ? Number(node.getAttribute("data-block")) : null;
}

/**
 * Lines of words that there is room for.
 *
 * @param {number} numTexts
 * @returns {number}
 */
function rowsOfEach(numTexts) {
  if (numTexts <= 2) return 9;
  return numTexts <= 4 ? 4 : 2;
}

/**
 * The numbers of the blocks, row by row.
 *
 * @param {number} numBlocks
 * @param {number} columns
 * @returns {number[][]}
 */
function rowsOfBlocks(numBlocks, columns) {
  const rows = [];
  for (let first = 0; first < numBlocks; first += columns) {
    const length = Math.min(columns, numBlocks - first);
    rows.push(Array.from({ length }, (_, column) => first + column));
  }
  return rows;
}

/**
 * @param {string} op
 * @param {string} text
 * @param {string} [label] what a screen reader says, if not the text
 * @returns {Markup}
 */
function controlButton(op, text, label = text) {
  return html`<button class="pl-button" type="button" data-op="${op}" tabindex="-1"
    aria-label="${label}">${text}</button>`;
}

/**
 * @param {WordRun} run
 * @returns {Markup}
 */
function runTemplate(run) {
  const prompt = run.isPrompt ? " ps-asked" : "";
  const block = run.isHeld || run.isCached ? html`data-block="${run.blockId}"` : "";
  const number = run.isHeld && run.endsBlock ? html`<sub>${run.blockId}</sub>` : "";
  const className = `ps-run ${runClass(run)}${prompt}`;
  return html`<span class="${className}" ${block}>${run.words}${number}</span>`;
}

/**
 * @param {WordRun} run
 * @returns {string}
 */
function runClass({ isHeld, isCached, index, blockId }) {
  if (isHeld) return `ps-held ps-${(index ?? 0) % 2 ? "odd" : "even"}`;
  if (isCached) return "ps-kept";
  return blockId === null ? "ps-new" : "";
}

/**
 * A row of the block tables, without its cells.
 *
 * @param {SequenceState} text
 * @returns {NodeTemplate}
 */
function tableTemplate({ name, look, tokens }) {
  const { color, pattern } = lookOf(look);
  const inside = html`
        <span class="pl-name" role="rowheader"><b>${name}</b>
          <i class="pl-swatch pl-hatch pl-p${pattern}"></i>
          <small>${plural(tokens, "token")}</small></span>
        <div class="pl-strip" role="presentation" data-own></div>`;
  return {
    class: "pl-table",
    style: `--c: ${color}`,
    role: "row",
    "data-sequence": name,
    inside,
  };
}

/**
 * @param {{model: StageModel, el: HTMLElement}} context
 * @returns {() => void} what removes the stage
 */
function renderStage({ model, el }) {
  const view = new StageView(model, el);
  return () => view.remove();
}

const stage = { render: renderStage };
export default stage;
