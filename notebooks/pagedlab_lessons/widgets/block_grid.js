// Draws the block grid. Python owns the pool: a click sends {op, ...}, and the whole `state` comes
// back, with all sentences. The page is a template of the state; `show` writes only what differs.

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
import { setScrollStops } from "./keyboard.js";
import { classes, find, findInput, html, show, showList } from "./markup.js";
import { plural } from "./words.js";

/**
 * @import { Owner, PoolModel, Table } from "./blocks.js"
 * @import { Markup } from "./markup.js"
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
 * @property {Record<string, string>} next what the reader can do while this sequence is selected
 * @property {string[]} presets names of the examples, after what their list says at first
 * @property {number} usual tokens that the field of the number has at first
 * @property {number[][]} copies [source, destination] of this step
 * @property {string | null} focus the sequence that the step acted on
 * @property {number} step
 * @property {number} steps
 * @property {string} position in words
 * @property {[string, boolean][]} log what each step did, and whether it went wrong
 * @property {string} calls calls of the pool in this step
 * @property {string} alert what went wrong
 * @property {string} spoken what a screen reader says
 * @property {{goal: string, said: string, is_done: boolean, hint: string, solve: string} | null}
 *   challenge
 */

const START = "Start here: New sequence takes blocks of the pool for its tokens.";
const POINT = "Point at a block, tap it, or move there with the arrow keys to see what it holds.";
const TITLES = {
  new: "A sequence of its own, with its own block table",
  append: "Add tokens to the selected sequence",
  write:
    "Append one token. If another sequence reads the last block too, the block is copied first",
  fork: "A second sequence over the same blocks",
  free: "Give back the blocks of the selected sequence",
  undo: "Back one step",
  redo: "Forward one step",
  reset: "Start over",
};
const WITH_AMOUNT = ["new", "append"];

/** One view of a pool. */
class GridView extends PoolView {
  /**
   * @param {PoolModel} model
   * @param {HTMLElement} host
   */
  constructor(model, host) {
    super(model, host, "block pool");
    /** @type {string | undefined} The sequence that Append, Write, Fork and Free act on. */
    this.selected = undefined;
    this.onState();
    this.listen({ "change:state": () => this.onState() });
  }

  // ---- what the reader does

  /** @param {MouseEvent} event */
  onClick(event) {
    const target = /** @type {Element} */ (event.target);
    const button = /** @type {HTMLElement | null} */ (target.closest("[data-op]"));
    const logEntry = target.closest("li");
    const row = /** @type {HTMLElement | null} */ (target.closest("[data-sequence]"));
    if (button) this.onButton(button);
    else if (logEntry) this.model.send?.({ op: "seek", step: logEntry.value });
    else if (row) this.selected = row.dataset.sequence;
    else this.selectNextReader(blockOf(target));
    this.paint();
  }

  /**
   * Buttons are aria-disabled, not disabled: a disabled one would lose the focus to the notebook.
   *
   * @param {HTMLElement} button
   */
  onButton(button) {
    if (button.matches('[aria-disabled="true"]')) return;
    const { op = "" } = button.dataset;
    const sequence = op === "new" ? null : this.selected;
    this.model.send?.({ op, sequence, n: WITH_AMOUNT.includes(op) ? this.amount : null });
  }

  /**
   * Selects a sequence that lists the block; a second click selects the next one.
   *
   * @param {number | null} blockId
   */
  selectNextReader(blockId) {
    const names = (this.readers[blockId ?? -1] ?? []).map(({ name }) => name);
    const place = names.indexOf(this.selected ?? "");
    this.selected = names[place + 1] ?? names[0] ?? this.selected;
  }

  /** @param {Event} event */
  onInput(event) {
    const target = /** @type {HTMLInputElement} */ (event.target);
    if (target.matches(".pl-scrubber"))
      this.model.send?.({ op: "seek", step: Number(target.value) });
    if (target.matches("select")) {
      this.model.send?.({ op: "preset", name: target.value });
      target.selectedIndex = 0;
    }
    this.paint();
  }

  /** The number of tokens that the reader typed, at first a block and a quarter. */
  get amount() {
    const field = /** @type {HTMLInputElement | null} */ (this.root.querySelector(".pl-amount"));
    return Number(field?.value ?? this.state.usual);
  }

  // ---- a new state

  /** Shows the state that Python sent, and keeps the selection where Python names no other. */
  onState() {
    /** @type {GridState} */
    this.state = this.model.get("state");
    const { counts, tables, block_size: size, focus, serial } = this.state;
    /** @type {Owner[][]} For each block the sequences that list it. */
    this.readers = ownersOfBlocks(counts.length, tables, size);
    const names = tables.map(({ name }) => name);
    const wanted = [focus, this.selected, names.at(-1)];
    this.selected = wanted.find((name) => names.includes(name ?? "")) ?? undefined;
    const hadFocus = this.root.matches(":has(.pl-tables :focus)");
    this.paint();
    this.onResize();
    this.scrollTo(".pl-tables", ".pl-selected");
    // The row that had the focus is gone: the keyboard stays inside the widget.
    if (hadFocus && !this.root.matches(":has(:focus)")) {
      find(this.root, this.selected ? ".pl-selected .pl-name" : '[data-op="new"]').focus();
    }
    this.root.dataset.serial = String(serial);
  }

  onResize() {
    drawCopyArrows(this.root, this.state.copies);
    setScrollStops(this.root.querySelectorAll(".pl-log"));
    this.scrollTo(".pl-log", ".pl-now");
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
    const { counts, columns, step, block_size: size } = this.state;
    this.root.className = classes({ root: true, many: columns > 16 });
    show(this.root, this.page());
    showBlocks(this.root, rowsOfBlocks(counts.length, columns), size, (blockId) => {
      const count = counts[blockId];
      const owners = this.readers[blockId];
      const css = blockClass(blockId, count, this.state.copies, { lost: count && !owners.length });
      const said = [plural(count, "reference"), ...owners.map(({ name }) => name)].join(", ");
      return { count, owners, css, said };
    });
    showList(find(this.root, ".pl-tables"), this.tables());
    const slider = findInput(this.root, ".pl-scrubber");
    // A late answer must not pull back a slider that moves.
    if (!slider.matches(":is(:focus, :active)")) slider.value = String(step);
    this.lightUp();
    this.keepTabStops();
  }

  /** The page without blocks and tables. */
  page() {
    const { challenge, alert, used, free, shared, copied, copying, saved, spoken } = this.state;
    const table = this.state.tables.find(({ name }) => name === this.selected);
    return html`
      <p class="pl-prompt">${this.state.next[this.selected ?? ""] ?? START}</p>
      <div class="pl-goal ${challenge?.is_done ? "pl-done" : ""}">${challengeTemplate(challenge)}</div>
      ${this.toolbar(table)}
      <div class="pl-alert" role="alert">${alert}</div>
      <div class="pl-body">
        <div class="pl-main">${this.canvas(this.state.columns)}</div>
        <div class="pl-side">
          <div class="pl-stats">${counter("used", used)}${counter("free", free)}
            ${counter("shared", shared)}${counter("copied", copied)}
            ${counter("copying", copying, "with copies")}</div>
          <p><b>${saved}</b> saved for LLaMA-2-7B</p>
          ${this.history()}</div></div>
      <div class="pl-spoken" aria-live="polite">${spoken}</div>`;
  }

  /**
   * The buttons. Enter in the form is a click on its button; a form of a dialog is never sent.
   *
   * @param {Table | undefined} table of the selected sequence
   * @returns {Markup}
   */
  toolbar(table) {
    const { step, steps, usual, presets } = this.state;
    const options = presets.map((name) => html`<option>${name}</option>`);
    const has = Boolean(table);
    return html`<div class="pl-toolbar" role="group" aria-label="operations">
        <form class="pl-group" method="dialog" novalidate>
          ${button("new", true, "New sequence", 0)}
          <label>&nbsp;of <input class="pl-amount" type="number" min="1" title="Enter makes a sequence"
            value="${usual}" data-own-enter> tokens</label></form>
        <span class="pl-group" role="toolbar" aria-label="operations on a sequence">
          <span class="pl-chip" style="--c: ${table?.color ?? "var(--line)"}">${
            this.selected ?? "no sequence"
          }</span>
          ${button("append", has, `Append ${this.amount}`)}${button("write", has, "Write 1")}
          ${button("fork", has, "Fork")}${button("free", has, "Free")}</span>
        <span class="pl-group" role="toolbar" aria-label="steps">
          ${button("undo", step > 0, "Undo")}${button("redo", step < steps, "Redo")}
          ${button("reset", steps > 0, "Reset")}</span>
        <select class="pl-select" aria-label="play an example">${options}</select>
      </div>`;
  }

  /** The steps so far, and a slider to go back. */
  history() {
    const { step, steps, position, calls, log } = this.state;
    const entries = log.map(([text, bad], i) => {
      const css = classes({ now: i + 1 === step, bad });
      return html`<li value="${i + 1}" class="${css}">${text}</li>`;
    });
    return html`${scrubber(position, steps)}<p class="pl-calls">${calls}</p>
        <ol class="pl-log" aria-label="steps so far">${entries}</ol>`;
  }

  /** The numbers of the logical blocks, and below them the block tables of all sequences. */
  tables() {
    const { tables, block_size: size } = this.state;
    const longest = Math.max(0, ...tables.map(({ blocks }) => blocks.length));
    const numbers = Array.from({ length: longest }, (_, index) => html`<small>${index}</small>`);
    const rows = tables.map((table) => {
      const selected = table.name === this.selected;
      return html`<div class="${classes({ table: true, selected })}" role="row"
        style="--c: ${table.color}" data-sequence="${table.name}" aria-selected="${selected}">
        <button class="pl-name" type="button" role="gridcell"
          tabindex="-1">${tableName(table)}</button>${tableStrip(table, size)}</div>`;
    });
    const header = html`<div class="pl-table" aria-hidden="true">
        <small class="pl-name">logical block</small><div class="pl-strip">${numbers}</div></div>`;
    return [header, ...rows];
  }

  /**
   * What a block holds, and in which slot its last token is.
   *
   * @param {number | null} blockId
   */
  describe(blockId) {
    if (blockId === null) return POINT;
    const size = this.state.block_size;
    const said = [`Block ${blockId}: ${plural(this.state.counts[blockId], "reference")}`];
    let slot = "";
    for (const { name, index, held } of this.readers[blockId]) {
      const first = index * size;
      const offset = held - 1;
      const tokens = offset ? `tokens ${first}–${first + offset}` : `token ${first}`;
      said.push(`${name}’s logical block ${index}, ${tokens}`);
      const place = `${blockId} × ${size} + ${offset} = ${blockId * size + offset}`;
      slot = ` · token ${first + offset} is in slot ${place}`;
    }
    return said.join(" · ") + slot;
  }
}

/**
 * @param {keyof typeof TITLES} op
 * @param {boolean} enabled
 * @param {string} text
 * @param {number} tabIndex -1 in a toolbar, which has one Tab stop
 * @returns {Markup}
 */
function button(op, enabled, text, tabIndex = -1) {
  return html`<button class="pl-button" tabindex="${tabIndex}" data-op="${op}"
  title="${TITLES[op]}" aria-disabled="${!enabled}">${text}</button>`;
}

/**
 * @param {GridState["challenge"]} challenge
 * @returns {Markup | string}
 */
function challengeTemplate(challenge) {
  if (!challenge) return "";
  const { goal, said, is_done: isDone, hint } = challenge;
  return html`<p><b>${isDone ? "✓" : "Goal:"} ${goal}</b></p><p>${said}</p>
      <button class="pl-button" type="button" data-op="solve">Next step of a solution</button>
      <details><summary>Hint</summary>${hint}</details>`;
}

const grid = {
  /**
   * @param {{model: PoolModel, el: HTMLElement}} context
   * @returns {() => void} what removes the grid
   */
  render({ model, el }) {
    const view = new GridView(model, el);
    return () => view.remove();
  },
};
export default grid;
