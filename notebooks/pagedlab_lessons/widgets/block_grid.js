// Draws the block grid. Python owns the pool: a click sends {op, ...}, and the whole `state` comes
// back. The page is a template of the state; `show` writes only what differs.

import {
  drawCopyArrows,
  ownersOfBlocks,
  rowsOfBlocks,
  showBlocks,
  tableName,
  tableStrip,
} from "./blocks.js";
import { isOwnEnter, makeRoot, roving, setScrollStops } from "./keyboard.js";
import { classes, find, findInput, html, show } from "./markup.js";
import { format, inBytes, percent, plural } from "./words.js";

/**
 * @import { BlockLook, Owner, Table } from "./blocks.js"
 * @import { Markup } from "./markup.js"
 */

/**
 * What the grid asks of its model, which is a widget in a notebook and a plain object on a page.
 *
 * @typedef {object} GridModel
 * @property {(name: string) => any} get
 * @property {(message: object) => void} send
 * @property {(event: string, listener: () => void) => void} on
 * @property {(event: string, listener: () => void) => void} off
 */

/**
 * @typedef {object} Challenge
 * @property {string} goal
 * @property {string[]} missing what is not reached yet
 * @property {string} hint
 * @property {string} why what the reader learned, once it is done
 * @property {[number, number]} solved steps of the solution that were shown, and all its steps
 */

/**
 * What Python says of the pool after a step.
 *
 * @typedef {object} GridState
 * @property {number} serial number of this state
 * @property {number} block_size tokens a block
 * @property {number} columns blocks a row
 * @property {number[]} counts reference count of each block
 * @property {number} used
 * @property {number} free
 * @property {number} shared
 * @property {number} copied
 * @property {number} copying blocks that would be used if every fork copied all
 * @property {Table[]} tables
 * @property {number[][]} copies [source, destination] of this step
 * @property {string | null} focus the sequence that the step acted on
 * @property {number} step
 * @property {number} steps
 * @property {[string, boolean][]} log what each step did, and whether it went wrong
 * @property {number} log_first steps before the first one of `log`
 * @property {string[]} calls calls of the pool in this step
 * @property {string | null} note
 * @property {string | null} error
 * @property {string[]} problems
 * @property {Challenge | null} challenge
 * @property {Record<number, number>} born the step in which each block was taken
 * @property {Record<number, string>} origins what took blocks in a step
 */

const USUAL_MODEL = "LLaMA-2-7B";
const MOST_WARNINGS = 4;
const MOST_CALLS = 6;
const STATS = /** @type {const} */ (["used", "free", "shared", "copied"]);
const MOST_TOKENS = 99_999; // of one operation
const FORK_TITLE = "A second sequence over the same blocks";
const APPEND_TITLE = "Add tokens to the selected sequence";
const WRITE_TITLE = `Append one token. It is written in the last block if there is
room; if another sequence reads that block too, the block is copied first`;

/** One view of a pool. */
class GridView {
  /**
   * @param {GridModel} model
   * @param {HTMLElement} host
   */
  constructor(model, host) {
    this.model = model;
    this.root = makeRoot("block pool");
    this.keepTabStops = roving(this.root);
    /** @type {{presets: string[], models: {name: string, bytes: number}[]}} */
    this.setup = model.get("setup");
    /** @type {GridState} */
    this.state = model.get("state");
    /** @type {number[]} The counts of the state before. */
    this.countsBefore = [];
    /** @type {Owner[][]} For each block the sequences that list it. */
    this.readers = [];
    /** @type {string | null} The sequence that Append, Write, Fork and Free act on. */
    this.selected = null;
    /** @type {number | null} The block under pointer or focus. */
    this.pointed = null;
    this.unanswered = 0; // messages to Python
    this.refused = ""; // why the number of tokens was not accepted

    host.append(this.root);
    this.onState();
    this.listen();
  }

  /** Follows the reader and the model. */
  listen() {
    this.root.addEventListener("click", (event) => this.onClick(event));
    this.root.addEventListener("input", (event) => this.onInput(event));
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    for (const event of ["pointerover", "focusin"]) {
      this.root.addEventListener(event, ({ target }) => this.point(this.blockOf(target)));
    }
    this.root.addEventListener("pointerleave", ({ pointerType }) => {
      if (pointerType !== "touch") this.point(null); // what a finger touched stays lit
    });
    this.root.addEventListener("focusout", () => this.point(null));
    this.onChange = () => this.onState();
    this.model.on("change:state", this.onChange);
    this.resized = new ResizeObserver(() => this.onResize());
    this.resized.observe(find(this.root, ".pl-blocks"));
  }

  /** Stops what would go on without the page. */
  remove() {
    this.resized?.disconnect();
    if (this.onChange) this.model.off("change:state", this.onChange);
  }

  // ---- what the reader does

  /** @param {MouseEvent} event */
  onClick(event) {
    const target = /** @type {Element} */ (event.target);
    const button = target.closest("[data-op]");
    const logEntry = /** @type {HTMLLIElement | null} */ (target.closest("li"));
    const row = target.closest("[data-sequence]");
    if (button) this.onButton(button);
    else if (logEntry) this.send({ op: "seek", step: logEntry.value });
    else if (row) this.selected = row.getAttribute("data-sequence");
    else this.selectNextReader(this.blockOf(target));
    this.paint();
  }

  /**
   * Buttons are aria-disabled, not disabled: a disabled one would lose the focus to the notebook.
   *
   * @param {Element} button
   */
  onButton(button) {
    if (button.getAttribute("aria-disabled") === "true") return;
    const op = button.getAttribute("data-op");
    const sequence = op === "new" ? null : this.selected;
    const takesAmount = op === "new" || op === "append";
    this.refused = takesAmount && this.amount === null ? this.refusal : "";
    if (!this.refused) this.send({ op, sequence, n: takesAmount ? this.amount : null });
  }

  /**
   * Selects a sequence that lists the block; a second click selects the next one.
   *
   * @param {number | null} blockId
   */
  selectNextReader(blockId) {
    if (blockId === null) return;
    const names = this.readers[blockId].map(({ name }) => name);
    if (!names.length) return;
    const place = names.indexOf(this.selected ?? "");
    this.selected = names[(place + 1) % names.length];
  }

  /**
   * Enter in the field of the number is a click on the button before it.
   *
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    if (!isOwnEnter(event)) return;
    event.preventDefault();
    this.onButton(find(this.root, '[data-op="new"]'));
    this.paint();
  }

  /** @param {Event} event */
  onInput(event) {
    const target = /** @type {HTMLInputElement} */ (event.target);
    const isRefused = target === this.amountField && target.value && this.amount === null;
    this.refused = isRefused ? this.refusal : "";
    if (target.matches(".pl-scrubber")) this.send({ op: "seek", step: Number(target.value) });
    if (target.dataset.ref === "examples") {
      this.send({ op: "preset", name: target.value });
      target.value = "";
    }
    this.paint();
  }

  /** @param {object} message */
  send(message) {
    this.unanswered += 1;
    this.root.dataset.asked = String(this.unanswered);
    this.model.send(message);
  }

  /**
   * Lights up a block.
   *
   * @param {number | null} blockId
   */
  point(blockId) {
    if (blockId === this.pointed) return;
    this.pointed = blockId;
    // Later: a block that is removed under the pointer says so in the middle of painting.
    queueMicrotask(() => this.paint());
  }

  /**
   * The block of the node under pointer or focus.
   *
   * @param {EventTarget | null} target
   * @returns {number | null}
   */
  blockOf(target) {
    const node = /** @type {Element} */ (target).closest("[data-block]");
    const written = node?.getAttribute("data-block");
    return written && written in this.state.counts ? Number(written) : null;
  }

  /** The field of the number of tokens. It is not there before the first drawing. */
  get amountField() {
    return /** @type {HTMLInputElement | null} */ (this.root.querySelector(".pl-amount"));
  }

  /** A block and a quarter: what the field says first. */
  get usualAmount() {
    const size = this.state.block_size;
    return size + Math.floor(size / 4);
  }

  /** The number of tokens that the reader typed; null if it is none. */
  get amount() {
    if (!this.amountField) return this.usualAmount;
    const typed = this.amountField.value.trim();
    const isWhole = /^\d+$/.test(typed);
    const n = Number(typed);
    return isWhole && n >= 1 && n <= MOST_TOKENS ? n : null;
  }

  /** Why what was typed is no number of tokens. */
  get refusal() {
    const typed = this.amountField?.value || "nothing";
    const range = `from 1 to ${format(MOST_TOKENS)}`;
    return `The number of tokens must be a whole number ${range}, got ${typed}.`;
  }

  // ---- a new state

  /** Shows the state that Python sent. */
  onState() {
    const before = this.state;
    this.countsBefore = before.counts;
    this.state = this.model.get("state");
    // By the states' numbers: a state that got lost on its way leaves no message open.
    const answers = Math.max(1, this.state.serial - before.serial);
    this.unanswered = Math.max(0, this.unanswered - answers);
    const { counts, tables, block_size: blockSize } = this.state;
    this.readers = ownersOfBlocks(counts.length, tables, blockSize);
    this.select();
    const hadFocus = this.hasFocusIn(".pl-tables");
    this.paint();
    this.placeArrows();
    this.scrollIntoView(".pl-log", ".pl-now");
    this.scrollIntoView(".pl-tables", ".pl-selected");
    if (hadFocus && !this.hasFocusIn("*")) this.takeFocus();
    this.root.dataset.serial = String(this.state.serial);
    this.root.dataset.asked = String(this.unanswered);
  }

  /** Keeps the selected sequence, if Python names no other and it is still there. */
  select() {
    const names = this.state.tables.map(({ name }) => name);
    const wanted = [this.state.focus, this.selected, names.at(-1)];
    this.selected = wanted.find((name) => name && names.includes(name)) ?? null;
  }

  /**
   * Whether the focus is in this widget, in a node of that selector.
   *
   * @param {string} selector
   * @returns {boolean}
   */
  hasFocusIn(selector) {
    const active = /** @type {Document} */ (this.root.getRootNode()).activeElement;
    return this.root.contains(active) && Boolean(active?.closest(selector));
  }

  /** Keeps the keyboard inside the widget: the row that had the focus is gone. */
  takeFocus() {
    const name = this.root.querySelector(".pl-selected .pl-name");
    const next = /** @type {HTMLElement | null} */ (name);
    (next ?? find(this.root, '[data-op="new"]')).focus();
  }

  /** The page was laid out anew, or for the first time. */
  onResize() {
    this.placeArrows();
    setScrollStops(this.root.querySelectorAll(".pl-log"));
    this.scrollIntoView(".pl-log", ".pl-now");
  }

  /** Arrows are where the blocks are. */
  placeArrows() {
    drawCopyArrows(this.root, this.state.copies);
  }

  /**
   * Scrolls a box, and nothing else, until a node of it is in view.
   *
   * @param {string} boxSelector
   * @param {string} nodeSelector
   */
  scrollIntoView(boxSelector, nodeSelector) {
    const box = find(this.root, boxSelector);
    const node = /** @type {HTMLElement | null} */ (box.querySelector(nodeSelector));
    const top = node ? node.offsetTop - box.offsetTop - box.scrollTop : 0;
    const below = top + (node?.offsetHeight ?? 0) - box.clientHeight;
    if (top < 0 || below > 0) box.scrollTop = atLineStart(box, box.scrollTop + below);
  }

  // ---- the page

  /** Draws the state, the selection, and what is pointed at. */
  paint() {
    const { counts, columns, step } = this.state;
    const isPointing = this.pointed !== null && counts[this.pointed] > 0;
    this.root.className = classes({ root: true, many: columns > 16, pointing: isPointing });
    show(this.root, this.page());
    const rows = rowsOfBlocks(counts.length, columns);
    showBlocks(this.root, rows, this.state.block_size, (blockId) => this.lookOfBlock(blockId));
    show(find(this.root, ".pl-tables"), this.tables());
    // A late answer must not pull back a slider that moves.
    if (!this.unanswered) findInput(this.root, ".pl-scrubber").value = String(step);
    this.keepTabStops();
    setScrollStops(this.root.querySelectorAll(".pl-log"));
  }

  /** The page without blocks and tables. */
  page() {
    const { challenge } = this.state;
    const table = this.state.tables.find(({ name }) => name === this.selected);
    const isDone = challenge && !challenge.missing.length;
    const warnings = this.warnings();
    return html`
      <p class="pl-prompt">${this.whatNext(table)}</p>
      <div class="pl-goal ${classes({ done: isDone })}" ${challenge ? "" : "hidden"}>
        ${challenge ? challengeTemplate(challenge) : ""}</div>
      ${this.toolbar(table)}
      <div class="pl-alert" role="alert" ${warnings.length ? "" : "hidden"}>${warnings.join(
        "\n",
      )}</div>
      <div class="pl-body">
        <div class="pl-main">
          <div class="pl-canvas">
            <div class="pl-blocks" role="grid" aria-label="physical blocks"
              style="--columns: ${this.state.columns}" data-own></div>
            <svg class="pl-arrows" aria-hidden="true" data-own></svg></div>
          <p class="pl-detail">${this.describe(this.pointed)}</p>
          <div class="pl-tables" role="grid" aria-label="block tables" data-own></div>
        </div>
        <div class="pl-side">
          <div class="pl-stats">${this.stats()}</div>
          ${this.memory()}${this.history()}
        </div>
      </div>
      <div class="pl-spoken" aria-live="polite">${this.spoken()}</div>`;
  }

  /** What a screen reader says of the step. */
  spoken() {
    const { note, log, log_first: logFirst, step } = this.state;
    return note ?? log[step - 1 - logFirst]?.[0] ?? "the pool is empty";
  }

  /** What went wrong, one line each. */
  warnings() {
    const { note, error, problems } = this.state;
    const all = [this.refused, note, error, ...problems].filter((line) => line);
    if (all.length <= MOST_WARNINGS) return all;
    return [...all.slice(0, MOST_WARNINGS), `and ${all.length - MOST_WARNINGS} more`];
  }

  /**
   * @param {Table | undefined} table of the selected sequence
   * @returns {Markup}
   */
  toolbar(table) {
    const { step, steps } = this.state;
    const { presets } = this.setup;
    const amount = this.amount ?? "";
    const newTitle = "A sequence of its own, with its own block table";
    const freeTitle = "Give back the blocks of the selected sequence";
    const has = Boolean(table);
    return html`<div class="pl-toolbar" role="group" aria-label="operations">
        ${button("new", true, "New sequence", newTitle, 0)}
        <label class="pl-tokens">of <input class="pl-amount" type="number" min="1"
          max="${MOST_TOKENS}" value="${this.usualAmount}" title="Enter makes a sequence"
          data-own-enter> token${amount === 1 ? "" : "s"}</label>
        <span class="pl-group" role="toolbar" aria-label="operations on a sequence">
          <span class="pl-chip" style="--c: ${table?.color ?? "var(--line)"}">${
            this.selected ?? "no sequence"
          }</span>
          ${button("append", has, `Append ${amount}`, APPEND_TITLE)}
          ${button("write", has, "Write 1", WRITE_TITLE)}
          ${button("fork", has, "Fork", FORK_TITLE)}
          ${button("free", has, "Free", freeTitle)}</span>
        <span class="pl-group" role="toolbar" aria-label="steps">
          ${button("undo", step > 0, "Undo", "Back one step")}
          ${button("redo", step < steps, "Redo", "Forward one step")}
          ${button("reset", steps > 0, "Reset", "Start over")}</span>
        <select class="pl-select" data-ref="examples" aria-label="play an example"
          ${presets.length ? "" : "hidden"}>
          <option value="">Examples …</option>
          ${presets.map((name) => html`<option>${name}</option>`)}</select>
      </div>`;
  }

  /** @returns {Markup[]} */
  stats() {
    return STATS.map((name) => {
      return html`<div class="pl-stat">
            <b data-stat="${name}">${format(this.state[name])}</b><span>${name}</span></div>`;
    });
  }

  /** How many blocks this pool uses, how many a pool that copies would use, and what that saves. */
  memory() {
    const { used, copying, block_size: blockSize } = this.state;
    const { models } = this.setup;
    const chosen = /** @type {HTMLSelectElement | null} */ (
      this.root.querySelector("[data-ref=model]")
    );
    const chosenName = chosen?.value ?? USUAL_MODEL;
    const bytesOfToken = models.find(({ name }) => name === chosenName)?.bytes ?? 0;
    const saved = inBytes(Math.max(0, copying - used) * blockSize * bytesOfToken);
    const most = Math.max(1, used, copying);
    const options = models.map(({ name }) => {
      return html`<option ${name === USUAL_MODEL ? "selected" : ""}>${name}</option>`;
    });
    return html`<div class="pl-meters">
            ${meter("this pool", used, most, "")}
            ${meter("with copies", copying, most, "pl-hatched")}</div>
          <p class="pl-saved"><b>${saved}</b> saved for
            <select class="pl-select" data-ref="model" aria-label="model">${options}</select></p>`;
  }

  /** The steps so far, and a slider to go back. */
  history() {
    const { step, steps, calls, log } = this.state;
    const position = `Step ${step} of ${steps}`;
    const shownCalls = calls.slice(0, MOST_CALLS);
    if (calls.length > MOST_CALLS) shownCalls.push("…");
    return html`<div class="pl-history">
            <label><span class="pl-step">${position}</span>
              <input type="range" class="pl-scrubber" aria-label="step" min="0"
                max="${Math.max(1, steps)}" aria-valuetext="${position}"></label>
            <p class="pl-calls">${shownCalls.join(" · ")}</p>
            <ol class="pl-log" aria-label="steps so far">${log.map((entry, i) =>
              this.logEntry(entry, i),
            )}</ol></div>`;
  }

  /**
   * @param {[string, boolean]} entry what the step did, and whether it went wrong
   * @param {number} i
   * @returns {Markup}
   */
  logEntry([text, bad], i) {
    const { step, log_first: logFirst } = this.state;
    const number = logFirst + i + 1;
    const css = classes({ now: number === step, later: number > step, bad });
    return html`<li value="${number}" class="${css}">${text}</li>`;
  }

  /**
   * @param {number} blockId
   * @returns {BlockLook}
   */
  lookOfBlock(blockId) {
    const size = this.state.block_size;
    const count = this.state.counts[blockId];
    const owners = this.readers[blockId];
    const names = owners.map(({ name }) => name);
    const held = Math.max(0, ...owners.map((owner) => owner.held));
    const holders = names.join(" and ") || "in no table";
    const said = count ? `${holders}, count ${count}, ${held} of ${size} tokens` : "free";
    return { count, owners, css: this.blockClass(blockId), said };
  }

  /**
   * @param {number} blockId
   * @returns {string}
   */
  blockClass(blockId) {
    const { counts, copies } = this.state;
    const count = counts[blockId];
    const isDestination = copies.some(([, destination]) => destination === blockId);
    return classes({
      block: true,
      used: count,
      empty: !count,
      shared: count > 1,
      source: !isDestination && copies.some(([source]) => source === blockId),
      destination: isDestination,
      lost: count && !this.readers[blockId].length,
      fresh: count && this.countsBefore[blockId] === 0,
      lit: blockId === this.pointed,
    });
  }

  /** The block tables of all sequences, below the numbers of the logical blocks. */
  tables() {
    const longest = Math.max(0, ...this.state.tables.map(({ blocks }) => blocks.length));
    const numbers = Array.from({ length: longest }, (_, index) => html`<span>${index}</span>`);
    return html`
      <div class="pl-table pl-index" aria-hidden="true" ${longest ? "" : "hidden"}>
        <span class="pl-name">logical block</span>
        <div class="pl-strip">${numbers}</div></div>
      ${this.state.tables.map((table) => this.tableRow(table))}`;
  }

  /**
   * @param {Table} table
   * @returns {Markup}
   */
  tableRow(table) {
    const { name, color } = table;
    const isSelected = name === this.selected;
    return html`<div class="${classes({ table: true, selected: isSelected })}" role="row"
      style="--c: ${color}" data-sequence="${name}" aria-selected="${isSelected}">
      <button class="pl-name" type="button" role="gridcell"
        tabindex="-1">${tableName(table)}</button>
      ${tableStrip(table, this.state.block_size, this.pointed)}</div>`;
  }

  // ---- sentences

  /**
   * What the reader can do next.
   *
   * @param {Table | undefined} table of the selected sequence
   * @returns {string}
   */
  whatNext(table) {
    const { step, steps, tables, problems } = this.state;
    if (!table) {
      const tokens = this.amount ? plural(this.amount, "token") : "tokens";
      const take = this.amount === 1 ? "takes a block" : "take blocks";
      return `Start here: New sequence. Its ${tokens} ${take} from the pool.`;
    }
    if (step < steps) {
      return `This is step ${step} of ${steps}. What you do now replaces the steps after it.`;
    }
    if (problems.length) {
      return "The box with the red edge says what went wrong. Undo goes back one step.";
    }
    if (this.willCopy(table)) {
      const last = `${table.name} shares block ${table.blocks.at(-1)}, which has room.`;
      // A reader's own table may forget the copy, so this says the rule and not what will happen.
      return `${last} A write must copy this block first: write a token and see.`;
    }
    const then =
      tables.length > 1
        ? "Click a block or a row to select another sequence"
        : "Append to it, or Fork it: a second sequence over the same blocks";
    return `${table.name} is selected. ${then}.`;
  }

  /**
   * Whether the next token of a sequence goes into a shared block.
   *
   * @param {Table} table
   * @returns {boolean}
   */
  willCopy({ tokens, blocks }) {
    const last = blocks.at(-1) ?? null;
    const hasRoom = tokens % this.state.block_size > 0;
    return hasRoom && last !== null && this.state.counts[last] > 1;
  }

  /**
   * What a block holds.
   *
   * @param {number | null} blockId
   * @returns {string}
   */
  describe(blockId) {
    if (blockId === null) {
      return "Point at a block, tap it, or move there with the arrow keys to see what it holds.";
    }
    const { counts, born, origins } = this.state;
    if (!counts[blockId]) return `Block ${blockId} is free.`;
    const parts = [`Block ${blockId}: ${plural(counts[blockId], "reference")}`];
    parts.push(...this.readers[blockId].map((reader) => this.describeReader(reader)));
    if (!this.readers[blockId].length) parts.push("in no table: lost");
    const step = born[blockId];
    if (step) parts.push(`taken in step ${step}, ${origins[step]}`);
    const slot = this.describeSlot(blockId);
    if (slot) parts.push(slot);
    return parts.join(" · ");
  }

  /**
   * @param {Owner} reader
   * @returns {string}
   */
  describeReader({ name, index, held }) {
    const first = index * this.state.block_size;
    let tokens = "no token yet";
    if (held === 1) tokens = `token ${first}`;
    if (held > 1) tokens = `tokens ${first}–${first + held - 1}`;
    return `${name}’s logical block ${index}, ${tokens}`;
  }

  /**
   * The slot formula with the numbers of the block's last token, or null if it has none.
   *
   * @param {number} blockId
   * @returns {string | null}
   */
  describeSlot(blockId) {
    const [reader] = this.readers[blockId];
    if (!reader?.held) return null;
    const size = this.state.block_size;
    const offset = reader.held - 1;
    const token = reader.index * size + offset;
    const slot = blockId * size + offset;
    return `token ${token} is in slot ${blockId} × ${size} + ${offset} = ${slot}`;
  }
}

/**
 * The first place from `top` on at which a line of a box begins, so that no line is cut in two.
 *
 * @param {HTMLElement} box
 * @param {number} top pixels that are scrolled
 * @returns {number}
 */
function atLineStart(box, top) {
  const lines = /** @type {HTMLElement[]} */ ([...box.children]);
  const starts = lines.map((line) => line.offsetTop - box.offsetTop);
  return starts.find((start) => start >= top) ?? top;
}

/**
 * @param {string} op
 * @param {boolean} enabled
 * @param {string} text
 * @param {string} title
 * @param {number} tabIndex -1 in a toolbar, which has one Tab stop
 * @returns {Markup}
 */
function button(op, enabled, text, title, tabIndex = -1) {
  return html`<button class="pl-button" type="button" tabindex="${tabIndex}" data-op="${op}"
  title="${title}" aria-disabled="${!enabled}">${text}</button>`;
}

/**
 * A bar of blocks.
 *
 * @param {string} name
 * @param {number} n blocks
 * @param {number} most blocks of the longest bar
 * @param {string} css
 * @returns {Markup}
 */
function meter(name, n, most, css) {
  return html`<div class="pl-meter"><span>${name}</span>
    <div><i class="${css}" style="width: ${percent(n, most)}"></i></div>
    <b>${plural(n, "block")}</b></div>`;
}

/**
 * @param {Challenge} challenge
 * @returns {Markup}
 */
function challengeTemplate({ goal, missing, hint, why, solved: [shown, all] }) {
  const next = shown === all ? "Solution: once more" : `Solution: step ${shown + 1} of ${all}`;
  return html`<p><i class="pl-flag"></i><b>${goal}</b></p>
      <span>${missing.length ? `Not yet: ${missing.join("; ")}.` : `Done. ${why}`}</span>
      <div class="pl-help"><details><summary>Hint</summary><p>${hint}</p></details>
        <button class="pl-button" type="button" data-op="solve">
          ${shown ? next : "Show the solution, step by step"}</button></div>`;
}

/**
 * @param {{model: GridModel, el: HTMLElement}} context
 * @returns {() => void} what removes the grid
 */
function renderGrid({ model, el }) {
  const view = new GridView(model, el);
  return () => view.remove();
}

const grid = { render: renderGrid };
export default grid;
