// The stage plays a recording, see docs/trace.md: answers on the left, blocks beside them, block
// tables below.

import {
  blockClass,
  counter,
  drawCopyArrows,
  ownersOfBlocks,
  PoolView,
  rowsOfBlocks,
  scrubber,
  showBlocks,
  tableName,
  tableStrip,
} from "./blocks.js";
import { setScrollStops } from "./keyboard.js";
import { lookOf } from "./looks.js";
import { classes, find, findInput, html, show, showList, withData } from "./markup.js";
import { describeBlock, whatHappened } from "./narration.js";
import { Replay } from "./replay.js";
import { wordRuns } from "./word_runs.js";
import { format, plural } from "./words.js";

/**
 * @import { PoolModel, Table } from "./blocks.js"
 * @import { Markup } from "./markup.js"
 * @import { Recording, SequenceState, State } from "./replay.js"
 * @import { WordRun } from "./word_runs.js"
 */

// The model has `recorded`, a recording; `step`, or -1 to play from the first; `live`: more steps
// will follow; and, where the page is to follow closely, `lag`: the seconds it may be late. With
// `ended_last`, requests that ended are below the others, the newest first, with few lines each.
// With `captions`, {step: sentence}, the line above is the last caption so far, and a film stays at
// each long enough to be read; `speed` is how many steps a second it begins with, and `first` is
// the step that it begins at. With `keeps_room`, each part has the height of its largest step at
// once.

const STEPS_A_SECOND = [1, 2, 4, 8, 16, 32]; // what the reader can choose
const USUAL_SPEED = 8;
const TO_READ_A_CAPTION = 1500; // milliseconds, at least
const FASTEST_WITH_FALLING_WORDS = 8;
const PICTURES_A_SECOND = 60; // an eye does not see more
const USUAL_LAG = 8; // seconds
const MOST_FALLING_WORDS = 4; // in one step
const FALL = 700; // milliseconds, at most
const AIR = 4; // pixels from a falling word to the edge of the stage, at least
const FALL_OF_A_STEP = 2; // steps that it may take
const SMALL_POOL = 128; // blocks; a larger pool is drawn as far as it is in use
const LEAST_ROWS = 4; // of a large pool
const MOST_ROWS = 64;
const ROWS_OF_LARGE_BLOCKS = 8; // of more rows, the blocks are drawn small
const SEEN_ABOVE = "0px 0px -15% 0px"; // the squares must begin above the window's lowest part
const AT_THE_END = 1e6; // pixels, below the last line of any text
const GROWING = ["pl-prompt", "ps-texts", "pl-tables", "pl-stats"]; // what has more in some steps

/** @type {Record<string, string>} */
const STATE_WORDS = {
  waiting: "waits",
  running: "writes",
  swapped: "parked on the host",
  stop: "done",
  length: "done, at its limit",
  abort: "aborted",
  error: "failed, its logits are not finite",
};

const ENDED = ["stop", "length", "abort", "error"];

/** One view of a recording. */
class StageView extends PoolView {
  /**
   * @param {PoolModel} model
   * @param {HTMLElement} host
   */
  constructor(model, host) {
    super(model, host, "what the engine did, step by step");
    this.reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.isPlaying = false;
    /** @type {boolean} Whether it plays as soon as the squares are on the screen. */
    this.playsWhenSeen = false;
    this.speed = model.get("speed") ?? USUAL_SPEED; // steps a second
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    // Which text it was, and how long, when it was last scrolled.
    /** @type {WeakMap<Element, string>} */
    this.scrolledFor = new WeakMap();
    /** @type {number} The width that room was kept for, in pixels. */
    this.roomyWidth = 0;
    this.step = 0;
    /** @type {State | null} */
    this.before = null;

    /** @type {Recording} */
    this.recording = model.get("recorded");
    this.replay = new Replay(this.recording);
    this.state = this.replay.stateAfter(0);
    this.listen({
      "change:recorded": () => this.onRecording(),
      "change:step": () => this.onStep(),
      "change:live": () => this.paint(),
    });
    if ("IntersectionObserver" in globalThis) {
      this.seen = new IntersectionObserver((entries) => this.onSeen(entries), {
        rootMargin: SEEN_ABOVE,
      });
    }
    this.restart();
  }

  onResize() {
    this.keepRoom();
    this.paint();
  }

  remove() {
    super.remove();
    clearTimeout(this.timer);
    this.seen?.disconnect();
  }

  // ---- what the reader does

  /** @param {MouseEvent} event */
  onClick({ target }) {
    const button = /** @type {Element} */ (target).closest("[data-op]");
    const op = button?.getAttribute("data-op");
    if (op === "play") {
      if (!this.isPlaying && this.isAtEnd) this.goTo(this.firstStep);
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

  /** @param {number | null} blockId */
  describe(blockId) {
    return describeBlock(this.state, blockId, this.recording.block_size);
  }

  // ---- what the model says

  /** A recording that grew, or another one. */
  onRecording() {
    /** @type {Recording} */
    const recording = this.model.get("recorded");
    const grew = beginsLike(recording, this.recording);
    this.recording = recording;
    if (grew) {
      this.replay.recording = recording;
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

  /** The step that playing begins at. */
  get firstStep() {
    return this.model.get("first") ?? 0;
  }

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
    else if (this.reducedMotion && !this.isLive) this.goTo(this.fullStep());
    else this.goTo(this.firstStep);
    // following an engine is no animation: without words that fall, each picture is just replaced
    const hasMore = !this.reducedMotion && this.lastStep > 0;
    if (plays && hasMore && !this.isLive && this.seen) this.waitToBeSeen(this.seen);
    else this.play(plays && (this.isLive || hasMore));
  }

  /**
   * Plays as soon as the squares are on the screen: below it, nobody would see them change.
   *
   * @param {IntersectionObserver} seen
   */
  waitToBeSeen(seen) {
    this.play(false);
    this.playsWhenSeen = true;
    seen.observe(find(this.root, ".pl-blocks"));
  }

  /** @param {IntersectionObserverEntry[]} entries */
  onSeen(entries) {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    this.seen?.disconnect();
    if (this.playsWhenSeen) this.play(true);
  }

  /** @param {number} step */
  stopAt(step) {
    this.play(false);
    this.goTo(step);
  }

  /** @param {boolean} on */
  play(on) {
    clearTimeout(this.timer);
    this.playsWhenSeen = false;
    this.isPlaying = on;
    if (on) {
      const speed = this.currentSpeed();
      const stride = Math.max(1, Math.round(speed / PICTURES_A_SECOND));
      const pause = Math.max((1000 * stride) / speed, this.timeToRead);
      this.timer = setTimeout(() => this.playOn(stride), pause);
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

  /** Milliseconds that a caption of this step needs, or 0. */
  get timeToRead() {
    return this.captions[this.step] ? TO_READ_A_CAPTION : 0;
  }

  /** @param {number} stride steps until the next picture */
  playOn(stride) {
    if (this.step < this.lastStep) this.goTo(this.step + stride);
    this.play(this.step < this.lastStep || this.isLive);
  }

  get isAtEnd() {
    return this.step === this.lastStep && !this.isLive;
  }

  /**
   * The last step with most blocks in use.
   *
   * @returns {number}
   */
  fullStep() {
    const used = this.recording.steps.map((step) => step.used ?? 0);
    return used.lastIndexOf(Math.max(...used));
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

  /**
   * The word appears below the number of its block and sinks into it.
   *
   * @param {SequenceState} sequence
   */
  dropWord({ name, blocks, tokens, words }) {
    const word = words[tokens - 1]?.trim();
    const block = this.root.querySelector(`.pl-block${withData("block", blocks.at(-1) ?? "")}`);
    if (!word || !block) return;
    const frame = this.root.getBoundingClientRect();
    const end = block.getBoundingClientRect();
    const falling = document.createElement("span");
    falling.className = "ps-drop";
    falling.dataset.falls = name;
    falling.textContent = word;
    const air = find(this.root, ".ps-air");
    air.querySelector(withData("falls", name))?.remove();
    air.append(falling);
    const middle = end.left - frame.left + (end.width - falling.offsetWidth) / 2;
    const rightmost = frame.width - falling.offsetWidth - AIR;
    falling.style.left = `${Math.max(AIR, Math.min(rightmost, middle))}px`;
    falling.style.top = `${end.top - frame.top}px`;
    falling.style.setProperty("--high", `${end.height}px`);
    falling.style.animationDuration = `${Math.min(FALL, FALL_OF_A_STEP * (1000 / this.speed))}ms`;
    falling.addEventListener("animationend", () => falling.remove());
  }

  // ---- the page

  /** Draws the state. */
  paint() {
    const shown = this.shownTexts();
    const numLong = shown.filter((text) => !this.isShort(text)).length;
    const size = classes({
      many: this.rows().length > ROWS_OF_LARGE_BLOCKS,
      playing: this.isPlaying,
    });
    this.root.className = `pl-root ps-root ${size}`;
    show(this.root, this.page(numLong));
    const scrubber = findInput(this.root, ".pl-scrubber");
    scrubber.max = String(Math.max(1, this.lastStep));
    scrubber.value = "0"; // Chromium draws the thumb anew only for another value
    scrubber.value = String(this.step);
    this.paintTexts(shown);
    const tables = shown.filter(({ blocks }) => blocks.length).map(tableOf);
    this.paintBlocks(tables);
    this.paintTables(tables);
    drawCopyArrows(this.root, this.state.now.copies ?? []);
    this.lightUp();
    this.keepTabStops();
    setScrollStops(this.root.querySelectorAll(".ps-texts, .ps-words"));
    this.root.dataset.at = String(this.step);
  }

  /** Gives each part the height of its largest step, so that nothing below moves while it plays. */
  keepRoom() {
    const width = this.root.clientWidth;
    if (!this.model.get("keeps_room") || !width || width === this.roomyWidth) return;
    this.roomyWidth = width;
    for (const name of GROWING) this.root.style.setProperty(`--room-${name}`, "0px");
    const { state } = this;
    const heights = GROWING.map(() => 0);
    for (let step = 0; step <= this.lastStep; step += 1) {
      this.state = this.replay.stateAfter(step);
      this.step = step;
      this.paint();
      GROWING.forEach((name, i) => {
        heights[i] = Math.max(heights[i], find(this.root, `.${name}`).offsetHeight);
      });
    }
    this.state = state;
    this.step = state.step;
    GROWING.forEach((name, i) => {
      this.root.style.setProperty(`--room-${name}`, `${heights[i]}px`);
    });
  }

  /** The sequences to show, in their order on the page. */
  shownTexts() {
    const shown = [...this.state.texts.values()];
    if (!this.model.get("ended_last")) return shown;
    const running = shown.filter(({ state }) => state === "running");
    const ended = shown.filter(isEnded).reverse();
    return [...new Set([...running, ...shown.filter((text) => !isEnded(text)), ...ended])];
  }

  /**
   * Whether few lines of a sequence are shown, since it ended.
   *
   * @param {SequenceState} text
   */
  isShort(text) {
    return Boolean(this.model.get("ended_last")) && isEnded(text);
  }

  /**
   * The page without texts, blocks and tables.
   *
   * @param {number} numTexts those that are not short
   * @returns {Markup}
   */
  page(numTexts) {
    const numBlocks = this.recording.num_blocks;
    const numDrawn = this.rows().flat().length;
    const sentence = this.sentence;
    const spoken = this.isPlaying ? "" : `${this.position}. ${sentence}`;
    return html`
      <p class="pl-prompt">${sentence}</p>
      ${this.controls()}
      <div class="ps-main">
        <div class="ps-texts" data-own role="group" aria-label="answers"
          style="--rows: ${rowsOfEach(numTexts)}"></div>
        <div class="ps-side">${this.canvas(this.columns)}
          <div class="pl-stats">${this.stats()}</div></div></div>
      <p class="ps-more" ${numBlocks > numDrawn ? "" : "hidden"}>Showing
        ${numDrawn} of ${plural(numBlocks, "block")}; the counters cover all
        ${format(numBlocks)}.</p>
      <div class="ps-air" aria-hidden="true" data-own></div>
      <div class="pl-spoken" aria-live="polite">${spoken}</div>`;
  }

  /** @returns {Record<number, string>} sentences for some steps, in place of the stage's own */
  get captions() {
    return this.model.get("captions") ?? {};
  }

  /** The last caption so far, or else what happened in this step. */
  get sentence() {
    const captioned = Object.keys(this.captions).map(Number);
    const last = Math.max(...captioned.filter((step) => step <= this.step));
    return this.captions[last] ?? whatHappened(this.state, this.before);
  }

  get position() {
    if (!this.lastStep) return this.isLive ? "No step yet" : "One step";
    return `Step ${this.step} of ${this.lastStep}`;
  }

  /** Blocks in a row. */
  get columns() {
    const { drawn } = this.recording;
    return drawn <= 16 ? 8 : 16;
  }

  /**
   * The rows of blocks that are drawn. Of a large pool, these are the rows with a block in use, and
   * a few more if there are hardly any: those with cached blocks first.
   *
   * @returns {number[][]}
   */
  rows() {
    const rows = rowsOfBlocks(this.recording.drawn, this.columns);
    if (this.recording.drawn <= SMALL_POOL) return rows;
    const { counts, kept } = this.state;
    const used = rows.filter((row) => row.some((blockId) => counts[blockId]));
    const cached = rows.filter((row) => row.some((blockId) => kept[blockId]));
    const shown = new Set(used);
    for (const row of [...cached.reverse(), ...rows]) {
      if (shown.size >= LEAST_ROWS) break;
      shown.add(row);
    }
    return rows.filter((row) => shown.has(row)).slice(0, MOST_ROWS);
  }

  /** @returns {Markup} */
  controls() {
    const speeds = STEPS_A_SECOND.map((n) => {
      const selected = n === this.speed ? "selected" : "";
      return html`<option value="${n}" ${selected}>${plural(n, "step")} a second</option>`;
    });
    return html`<div class="ps-controls">
        <span class="pl-group" role="toolbar" aria-label="playback">
          ${controlButton("play", this.playLabel)}
          ${controlButton("back", "‹", "one step back")}
          ${controlButton("on", "›", "one step on")}</span>
        <select class="pl-select ps-rate" aria-label="speed">${speeds}</select>
        ${scrubber(this.position, this.lastStep)}</div>`;
  }

  get playLabel() {
    if (this.isPlaying) return "❚❚ Pause";
    return this.isAtEnd ? "↻ Again" : "▶ Play";
  }

  /** @returns {Markup[]} */
  stats() {
    const { counts, used, cached, copied } = this.state;
    const shared = counts.filter((count) => count > 1).length;
    const free = this.recording.num_blocks - used;
    const stats = [counter("used", used), counter("free", free)];
    if (cached) stats.push(counter("cached", cached, "of them cached")); // of the free ones
    if (shared) stats.push(counter("shared", shared));
    if (copied) stats.push(counter("copied", copied));
    return stats;
  }

  /** @param {SequenceState[]} texts */
  paintTexts(texts) {
    const box = find(this.root, ".ps-texts");
    showList(
      box,
      texts.map((text) => this.textTemplate(text)),
    );
    this.root.querySelectorAll(".ps-words").forEach((words, i) => {
      const isShort = this.isShort(texts[i]);
      const shown = `${texts[i].name} ${isShort} ${words.textContent?.length}`;
      if (this.scrolledFor.get(words) !== shown) words.scrollTop = isShort ? 0 : AT_THE_END;
      this.scrolledFor.set(words, shown);
    });
  }

  /**
   * @param {SequenceState} text
   * @returns {Markup}
   */
  textTemplate(text) {
    const { color, pattern } = lookOf(text.look);
    const runs = wordRuns(text, this.state, this.recording.block_size);
    const css = `ps-text ps-${text.state}${this.isShort(text) ? " ps-short" : ""}`;
    return html`<div class="${css}" style="--c: ${color}" data-text="${text.name}">
        <p class="ps-head"><i class="pl-swatch pl-hatch pl-p${pattern}"></i><b>${text.name}</b>
          <span>${STATE_WORDS[text.state] ?? text.state}</span></p>
        <p class="ps-words">${runs.map(runTemplate)}</p></div>`;
  }

  /** @param {Table[]} tables */
  paintBlocks(tables) {
    const { drawn, block_size: blockSize } = this.recording;
    const ownersOf = ownersOfBlocks(drawn, tables, blockSize);
    const { copies = [], hits = [] } = this.state.now;
    showBlocks(this.root, this.rows(), blockSize, (blockId) => {
      const count = this.state.counts[blockId];
      const owners = ownersOf[blockId];
      const holders = owners.map(({ name }) => name).join(" and ");
      const css = blockClass(blockId, count, copies, {
        kept: !count && this.state.kept[blockId],
        found: hits.includes(blockId),
      });
      return { count, owners, css, said: count ? holders || "held" : "free" };
    });
  }

  /** @param {Table[]} tables those with blocks */
  paintTables(tables) {
    const rows = tables.map((table) => {
      return html`<div class="pl-table" style="--c: ${table.color}" role="row"
        data-sequence="${table.name}"><span class="pl-name"
        role="rowheader">${tableName(table)}</span>
        ${tableStrip(table, this.recording.block_size)}</div>`;
    });
    showList(find(this.root, ".pl-tables"), rows);
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
 * Whether a sequence will get no more tokens.
 *
 * @param {SequenceState} text
 * @returns {boolean}
 */
function isEnded({ state }) {
  return ENDED.includes(state);
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
  if (run.role !== null) return roleTemplate(run);
  const prompt = run.isPrompt ? " ps-asked" : "";
  const block = run.isHeld || run.isCached ? html`data-block="${run.blockId}"` : "";
  const number = run.isHeld && run.endsBlock ? html`<sub>${run.blockId}</sub>` : "";
  const className = `ps-run ${runClass(run)}${prompt}`;
  // The number is of the words before it, so it is beside them, and a gap comes after it.
  const words = run.words.trimEnd();
  const gap = run.words.slice(words.length);
  if (!words) return html`${gap}`;
  return html`<span class="${className}" ${block}>${words}${number}${gap}</span>`;
}

/**
 * What the chat template added: a chip with the role.
 *
 * @param {WordRun} run
 * @returns {Markup}
 */
function roleTemplate({ role, isHeld, isCached, blockId }) {
  if (!role) return html``;
  const block = isHeld || isCached ? html`data-block="${blockId}"` : "";
  return html`<span class="ps-role" title="written by the chat template" ${block}>${role}</span>`;
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
 * The block table of a sequence.
 *
 * @param {SequenceState} text
 * @returns {Table}
 */
function tableOf({ name, look, tokens, blocks }) {
  return { name, tokens, blocks, ...lookOf(look) };
}

/**
 * @param {{model: PoolModel, el: HTMLElement}} context
 * @returns {() => void} what removes the stage
 */
function renderStage({ model, el }) {
  const view = new StageView(model, el);
  return () => view.remove();
}

const stage = { render: renderStage };
export default stage;
