// The stage plays a recording, see docs/trace.md: answers on the left, blocks beside them, block
// tables below.

import { counters, drawCopyArrows, poolPage, scrubber } from "./blocks.js";
import { lookOf, patch } from "./looks.js";
import { classes, find, html, plural, withData } from "./markup.js";
import { Replay } from "./replay.js";
import { wordRuns } from "./word_runs.js";

/**
 * @import { PoolModel } from "./blocks.js"
 * @import { Markup } from "./markup.js"
 * @import { Recording, SequenceState } from "./replay.js"
 */

// The model has `recorded`, a recording; `live`: more steps
// will follow; and, where the page is to follow closely, `lag`: the seconds it may be late.
// `speed` is how many steps a second a film begins with, `first` the step that it begins at, and
// `pause` how many milliseconds it stays at a sentence, at least.

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
 * @param {any} owner with what is known of the sequence
 */
function placeOf({ name, first, held, range, words, roles }) {
  const written = words.map((/** @type {string} */ word, /** @type {number} */ i) =>
    i in roles ? "" : word,
  );
  return `${name}, ${range}: “${written.slice(first, first + held).join("")}”`;
}

/**
 * @param {{model: PoolModel, el: HTMLElement}} context
 * @returns {() => void} what removes the stage
 */
function render({ model, el }) {
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let replay = new Replay(model.get("recorded"));
  let isPlaying = false;
  let speed = model.get("speed") ?? USUAL_SPEED; // steps a second
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const view = { onModel, onClick, onInput, onResize: paint, describe };
  const pool = poolPage({ model, el }, "what the engine did, step by step", view);
  const { root } = pool;
  // It plays as soon as the squares are on the screen, unless the reader moved it before.
  const seen = new IntersectionObserver((entries) => entries.at(-1)?.isIntersecting && play(true), {
    rootMargin: SEEN_ABOVE,
  });

  // ---- what the reader does

  /** @param {Element} target */
  function onClick(target) {
    const op = target.getAttribute("data-op");
    if (op === "play") {
      if (isAtEnd()) goTo(firstStep());
      play(!isPlaying);
    }
    if (op === "back") stopAt(replay.step - 1);
    if (op === "on") stopAt(replay.step + 1);
  }

  /** @param {HTMLInputElement} target */
  function onInput(target) {
    if (target.matches(".pl-scrubber")) stopAt(Number(target.value));
    if (target.matches(".ps-rate")) speed = Number(target.value);
  }

  /** @param {number | null} blockId */
  function describe(blockId) {
    if (blockId === null) return replay.texts.size ? POINT : "";
    const places = pool.owners[blockId].slice(0, MOST_TABLES).map(placeOf);
    if (places.length) return `Block ${blockId}: ${places.join("; ")}`;
    const stays = replay.kept[blockId]
      ? "; its contents stay cached for the next identical prefix"
      : "";
    return `Block ${blockId} is free${stays}.`;
  }

  // ---- what the model says

  /** A recording that grew, or another one. */
  function onModel() {
    /** @type {Recording} */
    const recording = model.get("recorded");
    const known = replay.recording.steps;
    const isSame = JSON.stringify(recording.steps[0]) === JSON.stringify(known[0]);
    if (isSame && recording.steps.length >= known.length) {
      replay.recording = recording;
      paint();
    } else {
      replay = new Replay(recording);
      restart();
    }
  }

  // ---- playing

  /** The step that playing begins at. */
  function firstStep() {
    return model.get("first") ?? 0;
  }

  function lastStep() {
    return replay.recording.steps.length - 1;
  }

  /** Whether more steps will follow. */
  function isLive() {
    return model.get("live");
  }

  /** Plays from the first step. */
  function restart() {
    // following an engine is no animation: without words that fall, each picture is just replaced
    stopAt(isStill && !isLive() ? fullStep() : firstStep());
    if (isLive()) play(true);
    // below the screen, nobody would see the squares change
    else if (!isStill) seen.observe(find(root, ".pl-blocks"));
  }

  /** @param {number} step */
  function stopAt(step) {
    play(false);
    goTo(step);
  }

  /** @param {boolean} on */
  function play(on) {
    clearTimeout(timer);
    seen.disconnect();
    isPlaying = on;
    if (on) {
      const behind = (lastStep() - replay.step) / (model.get("lag") ?? USUAL_LAG);
      const now = isLive() ? Math.max(speed, behind) : speed; // steps a second
      const stride = Math.max(1, Math.round(now / PICTURES_A_SECOND));
      const toRead = replay.now.said ? (model.get("pause") ?? 0) : 0;
      const pause = Math.max((1000 * stride) / now, toRead);
      timer = setTimeout(() => playOn(stride), pause);
    }
    paint();
  }

  /** @param {number} stride steps until the next picture */
  function playOn(stride) {
    if (replay.step < lastStep()) goTo(replay.step + stride);
    play(!isAtEnd());
  }

  function isAtEnd() {
    return replay.step === lastStep() && !isLive();
  }

  /**
   * The last step with most blocks in use.
   *
   * @returns {number}
   */
  function fullStep() {
    const used = replay.recording.steps.map((step) => step.used ?? 0);
    return used.lastIndexOf(Math.max(...used));
  }

  /** @param {number} step */
  function goTo(step) {
    replay.seek(Math.max(0, Math.min(lastStep(), step)));
    paint();
    const isSlow = speed <= FASTEST_WITH_FALLING_WORDS;
    if (isPlaying && isSlow && !isStill) dropWords();
  }

  /** Lets the words that got their slots in this step sink into their blocks. */
  function dropWords() {
    for (const fallen of root.querySelectorAll(".ps-drop")) fallen.remove();
    const running = [...replay.texts.values()].filter(({ state }) => state === "running");
    for (const { blocks, tokens, words } of running.slice(0, MOST_FALLING_WORDS)) {
      const word = words[tokens - 1]?.trim();
      const block = find(root, `.pl-block${withData("block", blocks.at(-1) ?? "")}`);
      const drop = html`<b class="ps-drop" style="--speed: ${speed}" data-word="${word}"></b>`;
      if (word) block?.insertAdjacentHTML("beforeend", drop.source);
    }
  }

  // ---- the page

  /** Draws the state. */
  function paint() {
    const { drawn } = replay.recording;
    const shown = shownBlocks();
    pool.columns = drawn <= 16 ? 8 : 16;
    const looks = { many: shown.length > MOST_LARGE_BLOCKS, playing: isPlaying };
    root.className = `pl-root ps-root ${classes(looks)}`;
    pool.paint(page(shown));
    const slider = find(root, ".pl-scrubber");
    slider.value = "0"; // Chromium draws the thumb anew only for another value
    slider.value = String(replay.step);
    drawCopyArrows(root, replay.now.copies ?? []);
    root.dataset.at = String(replay.step);
  }

  /**
   * @param {number[]} shown the blocks that are drawn
   * @returns {Markup}
   */
  function page(shown) {
    const { num_blocks: numBlocks } = replay.recording;
    const { said, counts, kept } = replay;
    const { copies = [], hits = [] } = replay.now;
    const texts = [...replay.texts.values()];
    const tables = texts.filter(({ blocks }) => blocks.length);
    const spoken = isPlaying ? "" : `Step ${replay.step} of ${lastStep()}. ${said}`;
    const numShown = shown.length;
    const more = `Showing ${numShown} of ${plural(numBlocks, "block")}; the counters cover all.`;
    const blocks = pool.canvas(
      { ...replay.recording, counts, tables, copies },
      shown,
      (blockId) => ({
        kept: !counts[blockId] && kept[blockId],
        found: hits.includes(blockId),
      }),
    );
    return html`
      <p class="pl-prompt">${said}</p>
      ${controls()}
      <div class="ps-main">
        <div class="ps-texts" role="group" aria-label="answers"
          style="--rows: ${rowsOfEach(texts.length)}">${texts.map(textTemplate)}</div>
        <div class="ps-side">${blocks}${stats()}</div></div>
      <p class="ps-more pl-soft">${numBlocks > numShown ? more : ""}</p>
      <div class="pl-spoken" aria-live="polite">${spoken}</div>`;
  }

  /** The blocks that are drawn: of a large pool, the first ones and those in use. */
  function shownBlocks() {
    const { counts } = replay;
    const first = counts.length <= SMALL_POOL ? SMALL_POOL : FIRST_BLOCKS;
    return [...counts.keys()].filter((id) => id < first || counts[id]).slice(0, MOST_BLOCKS);
  }

  /** @returns {Markup} */
  function controls() {
    const speeds = STEPS_A_SECOND.map((n) => {
      const selected = n === speed ? "selected" : "";
      return html`<option value="${n}" ${selected}>${plural(n, "step")} a second</option>`;
    });
    return html`<div class="pl-row pl-toolbar ps-controls">
        <span class="pl-row pl-group">
          <button class="pl-button" data-op="play">${playLabel()}</button>
          <button class="pl-button" data-op="back" aria-label="one step back">‹</button>
          <button class="pl-button" data-op="on" aria-label="one step on">›</button></span>
        <select class="pl-button ps-rate" aria-label="speed">${speeds}</select>
        ${scrubber(replay.step, lastStep())}</div>`;
  }

  function playLabel() {
    if (isPlaying) return "❚❚ Pause";
    return isAtEnd() ? "↻ Again" : "▶ Play";
  }

  function stats() {
    const { counts, used, cached, copied, recording } = replay;
    const shared = counts.filter((count) => count > 1).length;
    return counters({ used, free: recording.num_blocks - used, cached, shared, copied });
  }

  /**
   * @param {SequenceState} text
   * @returns {Markup}
   */
  function textTemplate(text) {
    const words = wordRuns(text, replay.recording.block_size);
    return html`<div class="ps-text ps-${text.state}" style="--c: ${lookOf(text.look).color}; --look: ${text.look}">
        <p class="pl-row ps-head">${patch(text.look)}<b>${text.name}</b>
          <span class="pl-soft">${STATE_WORDS[text.state] ?? text.state}</span></p>
        <div class="ps-words"><p>${words}</p></div></div>`;
  }

  restart();
  return () => {
    pool.remove();
    clearTimeout(timer);
    seen.disconnect();
  };
}

export default { render };
