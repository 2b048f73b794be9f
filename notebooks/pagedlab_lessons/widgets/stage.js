// The stage plays a recording, see docs/trace.md: answers on the left, blocks beside them, block
// tables below.

import { counter, drawCopyArrows, PoolView, scrubber } from "./blocks.js";
import { lookOf, patch } from "./looks.js";
import { classes, find, html, show, showList, withData } from "./markup.js";
import { Replay } from "./replay.js";
import { wordRuns } from "./word_runs.js";
import { plural } from "./words.js";

/**
 * @import { PoolModel } from "./blocks.js"
 * @import { Markup } from "./markup.js"
 * @import { Recording, SequenceState } from "./replay.js"
 */

// The model has `recorded`, a recording; `live`: more steps
// will follow; and, where the page is to follow closely, `lag`: the seconds it may be late.
// `speed` is how many steps a second a film begins with, `first` the step that it begins at, and
// `pause` how many milliseconds it stays at a sentence, at least. With `keeps_room`, it has the
// height of its largest step at once.

const STEPS_A_SECOND = [1, 2, 4, 8, 16, 32]; // what the reader can choose
const USUAL_SPEED = 8;
const FASTEST_WITH_FALLING_WORDS = 8;
const PICTURES_A_SECOND = 60; // an eye does not see more
const USUAL_LAG = 8; // seconds
const MOST_FALLING_WORDS = 4; // in one step
const SMALL_POOL = 128; // blocks; a larger pool is drawn as far as it is in use
const FIRST_BLOCKS = 64; // of a large pool, which are always drawn
const MOST_BLOCKS = 1024; // that are drawn
const MOST_LARGE_BLOCKS = 128; // of more, each is drawn small
const SEEN_ABOVE = "0px 0px -15% 0px"; // the squares must begin above the window's lowest part
const MOST_TABLES = 2; // in what is said of a block
const POINT =
  "Point at a word or a block, or tap it: the word, its block and its cell in the table light up.";

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

/** One view of a recording. */
class StageView extends PoolView {
  /**
   * @param {PoolModel} model
   * @param {HTMLElement} host
   */
  constructor(model, host) {
    super(model, host, "what the engine did, step by step");
    this.isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.isPlaying = false;
    this.speed = model.get("speed") ?? USUAL_SPEED; // steps a second
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {number} The width that room was kept for, in pixels. */
    this.roomyWidth = 0;
    this.replay = new Replay(model.get("recorded"));
    // It plays as soon as the squares are on the screen, unless the reader moved it before.
    this.seen = new IntersectionObserver(
      (entries) => entries.at(-1)?.isIntersecting && this.play(true),
      { rootMargin: SEEN_ABOVE },
    );
    this.restart();
  }

  onResize() {
    this.keepRoom();
    this.paint();
  }

  remove() {
    super.remove();
    clearTimeout(this.timer);
    this.seen.disconnect();
  }

  // ---- what the reader does

  /** @param {Element} target */
  onClick(target) {
    const op = target.getAttribute("data-op");
    if (op === "play") {
      if (this.isAtEnd) this.goTo(this.firstStep);
      this.play(!this.isPlaying);
    }
    if (op === "back") this.stopAt(this.step - 1);
    if (op === "on") this.stopAt(this.step + 1);
  }

  /** @param {HTMLInputElement} target */
  onInput(target) {
    if (target.matches(".pl-scrubber")) this.stopAt(Number(target.value));
    if (target.matches(".ps-rate")) this.speed = Number(target.value);
  }

  /** @param {number | null} blockId */
  describe(blockId) {
    const { texts, kept } = this.replay;
    if (blockId === null) return texts.size ? POINT : "";
    const size = this.recording.block_size;
    const holding = [...texts.values()].filter(({ blocks }) => blocks.includes(blockId));
    const places = new Set(holding.map((text) => placeOf(text, blockId, size)));
    if (places.size) return `Block ${blockId}: ${[...places].slice(0, MOST_TABLES).join("; ")}`;
    const stays = kept[blockId] ? "; its contents stay cached for the next identical prefix" : "";
    return `Block ${blockId} is free${stays}.`;
  }

  // ---- what the model says

  /** A recording that grew, or another one. */
  onModel() {
    /** @type {Recording} */
    const recording = this.model.get("recorded");
    const known = this.recording.steps;
    const isSame = JSON.stringify(recording.steps[0]) === JSON.stringify(known[0]);
    if (isSame && recording.steps.length >= known.length) {
      this.replay.recording = recording;
      this.paint();
    } else {
      this.replay = new Replay(recording);
      this.restart();
    }
  }

  get recording() {
    return this.replay.recording;
  }

  get step() {
    return this.replay.step;
  }

  // ---- playing

  /** The step that playing begins at. */
  get firstStep() {
    return this.model.get("first") ?? 0;
  }

  get lastStep() {
    return this.recording.steps.length - 1;
  }

  /** Whether more steps will follow. */
  get isLive() {
    return Boolean(this.model.get("live"));
  }

  /** Plays from the first step. */
  restart() {
    // following an engine is no animation: without words that fall, each picture is just replaced
    this.stopAt(this.isStill && !this.isLive ? this.fullStep() : this.firstStep);
    if (this.isLive) this.play(true);
    // below the screen, nobody would see the squares change
    else if (!this.isStill) this.seen.observe(find(this.root, ".pl-blocks"));
  }

  /** @param {number} step */
  stopAt(step) {
    this.play(false);
    this.goTo(step);
  }

  /** @param {boolean} on */
  play(on) {
    clearTimeout(this.timer);
    this.seen.disconnect();
    this.isPlaying = on;
    if (on) {
      const speed = this.currentSpeed();
      const stride = Math.max(1, Math.round(speed / PICTURES_A_SECOND));
      const toRead = this.replay.now.said ? (this.model.get("pause") ?? 0) : 0;
      const pause = Math.max((1000 * stride) / speed, toRead);
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
    this.replay.seek(Math.max(0, Math.min(this.lastStep, step)));
    this.paint();
    const isSlow = this.speed <= FASTEST_WITH_FALLING_WORDS;
    if (this.isPlaying && isSlow && !this.isStill) this.dropWords();
  }

  /** Lets the words that got their slots in this step sink into their blocks. */
  dropWords() {
    for (const fallen of this.root.querySelectorAll(".ps-drop")) fallen.remove();
    const running = [...this.replay.texts.values()].filter(({ state }) => state === "running");
    for (const { blocks, tokens, words } of running.slice(0, MOST_FALLING_WORDS)) {
      const word = words[tokens - 1]?.trim();
      const block = find(this.root, `.pl-block${withData("block", blocks.at(-1) ?? "")}`);
      const duration = `min(0.7s, 2s / ${this.speed})`;
      const drop = html`<b class="ps-drop" style="animation-duration: ${duration}">${word}</b>`;
      if (word) block?.insertAdjacentHTML("beforeend", drop.source);
    }
  }

  // ---- the page

  /** Draws the state. */
  paint() {
    const { recording, replay } = this;
    const shown = this.shownBlocks();
    this.columns = recording.drawn <= 16 ? 8 : 16;
    const looks = { many: shown.length > MOST_LARGE_BLOCKS, playing: this.isPlaying };
    this.root.className = `pl-root ps-root ${classes(looks)}`;
    show(this.root, this.page(shown.length));
    const scrubber = find(this.root, ".pl-scrubber");
    scrubber.value = "0"; // Chromium draws the thumb anew only for another value
    scrubber.value = String(this.step);
    const texts = [...replay.texts.values()];
    showList(
      find(this.root, ".ps-texts"),
      texts.map((text) => this.textTemplate(text)),
    );
    const { counts, kept } = replay;
    const { copies = [], hits = [] } = replay.now;
    const tables = texts.filter(({ blocks }) => blocks.length);
    this.paintPool({ size: recording.block_size, counts, tables, copies }, shown, (blockId) => ({
      kept: !counts[blockId] && kept[blockId],
      found: hits.includes(blockId),
    }));
    drawCopyArrows(this.root, copies);
    this.root.dataset.at = String(this.step);
  }

  /** Takes the height of the largest step, so that nothing below moves while it plays. */
  keepRoom() {
    const width = this.root.clientWidth;
    if (!this.model.get("keeps_room") || width === this.roomyWidth) return;
    this.roomyWidth = width;
    this.root.style.minHeight = "";
    const { step } = this;
    const heights = this.recording.steps.map((_, at) => {
      this.replay.seek(at);
      this.paint();
      return this.root.offsetHeight;
    });
    this.root.style.minHeight = `${Math.max(...heights)}px`;
    this.replay.seek(step);
  }

  /**
   * The page without texts, blocks and tables.
   *
   * @param {number} numShown blocks that are drawn
   * @returns {Markup}
   */
  page(numShown) {
    const { num_blocks: numBlocks } = this.recording;
    const { said, texts } = this.replay;
    const spoken = this.isPlaying ? "" : `${this.position}. ${said}`;
    const more = `Showing ${numShown} of ${plural(numBlocks, "block")}; the counters cover all.`;
    return html`
      <p class="pl-prompt">${said}</p>
      ${this.controls()}
      <div class="ps-main">
        <div class="ps-texts" data-own role="group" aria-label="answers"
          style="--rows: ${rowsOfEach(texts.size)}"></div>
        <div class="ps-side">${this.canvas()}
          <div class="pl-stats">${this.stats()}</div></div></div>
      <p class="ps-more">${numBlocks > numShown ? more : ""}</p>
      <div class="pl-spoken" aria-live="polite">${spoken}</div>`;
  }

  get position() {
    return `Step ${this.step} of ${this.lastStep}`;
  }

  /** The blocks that are drawn: of a large pool, the first ones and those in use. */
  shownBlocks() {
    const { drawn } = this.recording;
    const blockIds = [...Array(drawn).keys()];
    if (drawn <= SMALL_POOL) return blockIds;
    const { counts } = this.replay;
    return blockIds.filter((id) => id < FIRST_BLOCKS || counts[id]).slice(0, MOST_BLOCKS);
  }

  /** @returns {Markup} */
  controls() {
    const speeds = STEPS_A_SECOND.map((n) => {
      const selected = n === this.speed ? "selected" : "";
      return html`<option value="${n}" ${selected}>${plural(n, "step")} a second</option>`;
    });
    return html`<div class="ps-controls">
        <span class="pl-group">
          <button class="pl-button" data-op="play">${this.playLabel}</button>
          <button class="pl-button" data-op="back" aria-label="one step back">‹</button>
          <button class="pl-button" data-op="on" aria-label="one step on">›</button></span>
        <select class="pl-select ps-rate" aria-label="speed">${speeds}</select>
        ${scrubber(this.position, this.lastStep)}</div>`;
  }

  get playLabel() {
    if (this.isPlaying) return "❚❚ Pause";
    return this.isAtEnd ? "↻ Again" : "▶ Play";
  }

  /** @returns {Markup[]} */
  stats() {
    const { counts, used, cached, copied } = this.replay;
    const shared = counts.filter((count) => count > 1).length;
    const stats = { used, free: this.recording.num_blocks - used, cached, shared, copied };
    const shown = Object.entries(stats).filter(([name, n]) => n || ["used", "free"].includes(name));
    return shown.map(([name, n]) => counter(name, n));
  }

  /**
   * @param {SequenceState} text
   * @returns {Markup}
   */
  textTemplate(text) {
    const words = wordRuns(text, this.recording.block_size);
    return html`<div class="ps-text ps-${text.state}" style="--c: ${lookOf(text.look).color}; --look: ${text.look}">
        <p class="ps-head">${patch(text.look)}<b>${text.name}</b>
          <span>${STATE_WORDS[text.state] ?? text.state}</span></p>
        <div class="ps-words"><p>${words}</p></div></div>`;
  }
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
 * Which tokens of a sequence a block holds, and their words without the chat template's.
 *
 * @param {SequenceState} text
 * @param {number} blockId
 * @param {number} blockSize tokens a block
 */
function placeOf({ name, blocks, tokens, words, roles }, blockId, blockSize) {
  const first = blocks.indexOf(blockId) * blockSize;
  const stop = Math.min(tokens, first + blockSize);
  const written = words.map((word, i) => (i in roles ? "" : word)).slice(first, stop);
  const range = stop - first < 2 ? `token ${first}` : `tokens ${first}–${stop - 1}`;
  return `${name}, ${range}: “${written.join("")}”`;
}

/**
 * @param {{model: PoolModel, el: HTMLElement}} context
 * @returns {() => void} what removes the stage
 */
function render({ model, el }) {
  const view = new StageView(model, el);
  return () => view.remove();
}

export default { render };
