// Draws the block grid. Python owns the pool: a click sends {op, ...}, and the whole `state` comes
// back. The page is a template of the state; `show` writes only what differs.

import {
  blockClass,
  blockOf,
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
import { isOwnEnter, setScrollStops } from "./keyboard.js";
import { classes, find, findInput, html, show } from "./markup.js";
import { percent, plural } from "./words.js";

/**
 * @import { BlockLook, Owner, PoolModel, Table } from "./blocks.js"
 * @import { Markup } from "./markup.js"
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
 * @property {string} saved what that saves
 * @property {Table[]} tables
 * @property {number[][]} copies [source, destination] of this step
 * @property {string | null} focus the sequence that the step acted on
 * @property {number} step
 * @property {number} steps
 * @property {[string, boolean][]} log what each step did, and whether it went wrong
 * @property {string[]} calls calls of the pool in this step
 * @property {string | null} note
 * @property {string | null} error
 * @property {string[]} problems
 * @property {Challenge | null} challenge
 */

const STATS = /** @type {const} */ (["used", "free", "shared", "copied"]);
const FORK_TITLE = "A second sequence over the same blocks";
const APPEND_TITLE = "Add tokens to the selected sequence";
const WRITE_TITLE = `Append one token. It is written in the last block if there is
room; if another sequence reads that block too, the block is copied first`;

/** One view of a pool. */
class GridView extends PoolView {
  /**
   * @param {PoolModel} model
   * @param {HTMLElement} host
   */
  constructor(model, host) {
    super(model, host, "block pool");
    /** @type {string[]} */
    this.presets = model.get("presets");
    /** @type {GridState} */
    this.state = model.get("state");
    /** @type {Owner[][]} For each block the sequences that list it. */
    this.readers = [];
    /** @type {string | null} The sequence that Append, Write, Fork and Free act on. */
    this.selected = null;
    this.unanswered = 0; // messages to Python

    this.onState();
    this.listen({ "change:state": () => this.onState() });
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
    else this.selectNextReader(blockOf(target));
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
    this.send({ op, sequence, n: takesAmount ? this.amount : null });
  }

  /**
   * Selects a sequence that lists the block; a second click selects the next one.
   *
   * @param {number | null} blockId
   */
  selectNextReader(blockId) {
    const names = (this.readers[blockId ?? -1] ?? []).map(({ name }) => name);
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
    this.model.send?.(message);
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

  /** The number of tokens that the reader typed. Python refuses one that makes no sense. */
  get amount() {
    return Number(this.amountField?.value ?? this.usualAmount);
  }

  // ---- a new state

  /** Shows the state that Python sent. */
  onState() {
    const before = this.state;
    this.state = this.model.get("state");
    // By the states' numbers: a state that got lost on its way leaves no message open.
    const answers = Math.max(1, this.state.serial - before.serial);
    this.unanswered = Math.max(0, this.unanswered - answers);
    const { counts, tables, block_size: blockSize } = this.state;
    this.readers = ownersOfBlocks(counts.length, tables, blockSize);
    this.select();
    const hadFocus = this.root.matches(":has(.pl-tables :focus)");
    this.paint();
    this.placeArrows();
    this.scrollTo(".pl-log", ".pl-now");
    this.scrollTo(".pl-tables", ".pl-selected");
    if (hadFocus && !this.root.matches(":has(:focus)")) this.takeFocus();
    this.root.dataset.serial = String(this.state.serial);
    this.root.dataset.asked = String(this.unanswered);
  }

  /** Keeps the selected sequence, if Python names no other and it is still there. */
  select() {
    const names = this.state.tables.map(({ name }) => name);
    const wanted = [this.state.focus, this.selected, names.at(-1)];
    this.selected = wanted.find((name) => name && names.includes(name)) ?? null;
  }

  /** Keeps the keyboard inside the widget: the row that had the focus is gone. */
  takeFocus() {
    const name = this.root.querySelector(".pl-selected .pl-name");
    const next = /** @type {HTMLElement | null} */ (name);
    (next ?? find(this.root, '[data-op="new"]')).focus();
  }

  onResize() {
    this.placeArrows();
    setScrollStops(this.root.querySelectorAll(".pl-log"));
    this.scrollTo(".pl-log", ".pl-now");
  }

  /** Arrows are where the blocks are. */
  placeArrows() {
    drawCopyArrows(this.root, this.state.copies);
  }

  /**
   * Scrolls a box, and nothing else, until a node is in the middle of it.
   *
   * @param {string} boxSelector
   * @param {string} nodeSelector
   */
  scrollTo(boxSelector, nodeSelector) {
    const box = find(this.root, boxSelector);
    const node = /** @type {HTMLElement | null} */ (box.querySelector(nodeSelector));
    if (node) box.scrollTop = node.offsetTop - box.offsetTop - box.clientHeight / 2;
  }

  // ---- the page

  /** Draws the state, the selection, and what is pointed at. */
  paint() {
    const { counts, columns, step } = this.state;
    this.root.className = classes({ root: true, many: columns > 16 });
    show(this.root, this.page());
    const rows = rowsOfBlocks(counts.length, columns);
    showBlocks(this.root, rows, this.state.block_size, (blockId) => this.lookOfBlock(blockId));
    show(find(this.root, ".pl-tables"), this.tables());
    // A late answer must not pull back a slider that moves.
    if (!this.unanswered) findInput(this.root, ".pl-scrubber").value = String(step);
    this.lightUp();
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
          ${this.canvas(this.state.columns)}
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
    const { note, log, step } = this.state;
    return note ?? log[step - 1]?.[0] ?? "the pool is empty";
  }

  /** What went wrong, one line each. */
  warnings() {
    const { note, error, problems } = this.state;
    return [note, error, ...problems].filter((line) => line);
  }

  /**
   * @param {Table | undefined} table of the selected sequence
   * @returns {Markup}
   */
  toolbar(table) {
    const { step, steps } = this.state;
    const { presets } = this;
    const { amount } = this;
    const newTitle = "A sequence of its own, with its own block table";
    const freeTitle = "Give back the blocks of the selected sequence";
    const has = Boolean(table);
    return html`<div class="pl-toolbar" role="group" aria-label="operations">
        ${button("new", true, "New sequence", newTitle, 0)}
        <label class="pl-tokens">of <input class="pl-amount" type="number" min="1"
          value="${this.usualAmount}" title="Enter makes a sequence"
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
    return STATS.map((name) => counter(name, this.state[name]));
  }

  /** How many blocks this pool uses, how many a pool that copies would use, and what that saves. */
  memory() {
    const { used, copying, saved } = this.state;
    const most = Math.max(1, used, copying);
    return html`<div class="pl-meters">
            ${meter("this pool", used, most, "")}
            ${meter("with copies", copying, most, "pl-hatched")}</div>
          <p class="pl-saved"><b>${saved}</b> saved for LLaMA-2-7B</p>`;
  }

  /** The steps so far, and a slider to go back. */
  history() {
    const { step, steps, calls, log } = this.state;
    const position = `Step ${step} of ${steps}`;
    return html`<div class="pl-history">
            ${scrubber(position, steps)}
            <p class="pl-calls">${calls.join(" · ")}</p>
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
    const { step } = this.state;
    const number = i + 1;
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
    return { count, owners, css: this.cssOf(blockId), said };
  }

  /**
   * @param {number} blockId
   * @returns {string}
   */
  cssOf(blockId) {
    const count = this.state.counts[blockId];
    const lost = count && !this.readers[blockId].length;
    return blockClass(blockId, count, this.state.copies, { lost });
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
      ${tableStrip(table, this.state.block_size)}</div>`;
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
      const tokens = plural(this.amount, "token");
      return `Start here: New sequence, with room for ${tokens} in blocks of the pool.`;
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
    const { counts } = this.state;
    if (!counts[blockId]) return `Block ${blockId} is free.`;
    const parts = [`Block ${blockId}: ${plural(counts[blockId], "reference")}`];
    parts.push(...this.readers[blockId].map((reader) => this.describeReader(reader)));
    if (!this.readers[blockId].length) parts.push("in no table: lost");
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
 * @param {{model: PoolModel, el: HTMLElement}} context
 * @returns {() => void} what removes the grid
 */
function renderGrid({ model, el }) {
  const view = new GridView(model, el);
  return () => view.remove();
}

const grid = { render: renderGrid };
export default grid;
