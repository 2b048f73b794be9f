// Draws the block grid. Python owns the pool: a click sends {op, ...}, and the whole `state` comes
// back, with all sentences. The page is a template of the state; `show` writes only what differs.

import { counters, drawCopyArrows, poolPage, scrubber } from "./blocks.js";
import { classes, find, html, plural } from "./markup.js";

/**
 * @import { PoolModel, Table } from "./blocks.js"
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
 * @property {Record<string, number>} figures used, free, shared and copied blocks, and how many would
 *   be used if every fork copied all
 * @property {string} saved what that saves
 * @property {Table[]} tables
 * @property {Record<string, string>} next what the reader can do while this sequence is selected
 * @property {string[]} presets names of the examples, after what their list says at first
 * @property {number} usual tokens that the field of the number has at first
 * @property {number[][]} copies [source, destination] of this step
 * @property {string | null} focus the sequence that the step acted on
 * @property {number} step
 * @property {number} steps
 * @property {[string, boolean][]} log what each step did, and whether it went wrong
 * @property {string} alert what went wrong
 * @property {string} spoken what a screen reader says
 * @property {{goal: string, missing: string[], why: string, hint: string, solution: string} | null}
 *   challenge
 */

const START = "Start here: New sequence takes blocks of the pool for its tokens.";
const POINT = "Point at a block, tap it, or move there with the arrow keys to see what it holds.";

/**
 * @param {string} op
 * @param {boolean} enabled
 * @param {string} text
 * @returns {Markup}
 */
function button(op, enabled, text) {
  return html`<button class="pl-button" data-op="${op}" aria-disabled="${!enabled}">${text}</button>`;
}

/**
 * @param {string[]} names
 * @returns {Markup[]}
 */
function optionsOf(names) {
  return names.map((name) => html`<option>${name}</option>`);
}

/**
 * @param {NonNullable<GridState["challenge"]>} challenge
 * @returns {Markup}
 */
function challengeTemplate({ goal, missing, why, hint, solution }) {
  const isDone = !missing.length;
  const said = isDone ? `Done. ${why}` : `Not yet: ${missing.join("; ")}.`;
  return html`<div class="pl-tint pl-goal ${isDone ? "pl-done" : ""}">
      <p><b>${isDone ? "✓" : "Goal:"} ${goal}</b></p><p>${said}</p>
      <details><summary>Hint</summary>${hint}</details>
      <details><summary>A solution</summary>${solution}</details></div>`;
}

/**
 * @param {{model: PoolModel, el: HTMLElement}} context
 * @returns {() => void} what removes the grid
 */
function render({ model, el }) {
  /** @type {GridState} */
  let state = model.get("state");
  /** @type {string | undefined} The sequence that Append, Write, Fork and Free act on. */
  let selected;
  const view = { onModel, onClick, onInput, onResize, describe };
  const pool = poolPage({ model, el }, "block pool", view);
  const { root } = pool;

  // ---- what the reader does

  /** @param {any} target */
  function onClick(target) {
    const button = target.closest("[data-op]");
    const row = target.closest("[data-sequence]");
    if (button) return onButton(button); // the page is drawn when Python answers
    if (row) selected = row.dataset.sequence;
    else selectNextReader(target.closest("[data-block]")?.dataset.block);
    paint();
  }

  /**
   * Buttons are aria-disabled, not disabled: a disabled one would lose the focus to the notebook.
   *
   * @param {HTMLElement} button
   */
  function onButton(button) {
    if (button.matches('[aria-disabled="true"]')) return;
    const { op = "" } = button.dataset;
    const sequence = op === "new" ? null : selected;
    model.send?.({ op, sequence, n: ["new", "append"].includes(op) ? amount() : null });
  }

  /**
   * Selects a sequence that lists the block; a second click selects the next one.
   *
   * @param {any} blockId undefined if no block was clicked
   */
  function selectNextReader(blockId) {
    const names = (pool.owners[blockId] ?? []).map(({ name }) => name);
    const place = names.indexOf(selected ?? "");
    selected = names[place + 1] ?? names[0] ?? selected;
  }

  /** @param {HTMLInputElement} target */
  function onInput(target) {
    if (target.matches(".pl-scrubber")) model.send?.({ op: "seek", step: Number(target.value) });
    if (target.matches(".pl-sequence")) selected = target.value;
    if (target.matches(".pl-examples")) {
      model.send?.({ op: "preset", name: target.value });
      target.value = state.presets[0];
    }
    paint();
  }

  /** The number of tokens that the reader typed, at first a block and a quarter. */
  function amount() {
    return Number(find(root, ".pl-amount")?.value ?? state.usual);
  }

  // ---- a new state

  /** Shows the state that Python sent, and keeps the selection where Python names no other. */
  function onModel() {
    state = model.get("state");
    const { columns, tables, focus, serial } = state;
    pool.columns = columns;
    const names = tables.map(({ name }) => name);
    const wanted = [focus, selected, names.at(-1)];
    selected = wanted.find((name) => names.includes(name ?? "")) ?? undefined;
    paint();
    onResize();
    scrollTo(".pl-tables", ".pl-selected");
    root.dataset.serial = String(serial);
  }

  function onResize() {
    drawCopyArrows(root, state.copies);
    scrollTo(".pl-log", ".pl-now");
  }

  /**
   * Scrolls a box, and nothing else, until a node is in the middle of it.
   *
   * @param {string} boxSelector
   * @param {string} nodeSelector
   */
  function scrollTo(boxSelector, nodeSelector) {
    const box = find(root, boxSelector);
    const node = find(box, nodeSelector);
    if (node) box.scrollTop = node.offsetTop - box.offsetTop - box.clientHeight / 2;
  }

  // ---- the page

  /** Draws the state, the selection, and what is pointed at. */
  function paint() {
    root.classList.toggle("pl-many", pool.columns > 16);
    pool.paint(page());
    find(root, ".pl-sequence").value = selected ?? "";
    const slider = find(root, ".pl-scrubber");
    // A late answer must not pull back a slider that moves.
    if (!slider.matches(":is(:focus, :active)")) slider.value = String(state.step);
  }

  /** The page. */
  function page() {
    const { challenge, alert, figures, saved, spoken, counts } = state;
    const blocks = pool.canvas({ ...state, selected }, [...counts.keys()], (blockId) => ({
      lost: counts[blockId] && !pool.owners[blockId].length,
    }));
    return html`
      <p class="pl-prompt">${state.next[selected ?? ""] ?? START}</p>
      ${challenge ? challengeTemplate(challenge) : ""}
      ${toolbar()}
      <div class="pl-alert" role="alert">${alert}</div>
      <div class="pl-body">
        <div class="pl-main">${blocks}</div>
        <div class="pl-side">
          ${counters(figures)}
          <p><b>${saved}</b> saved for LLaMA-2-7B</p>
          ${history()}</div></div>
      <div class="pl-spoken" aria-live="polite">${spoken}</div>`;
  }

  /** The buttons. Enter in the form is a click on its button; a form of a dialog is never sent. */
  function toolbar() {
    const { step, steps, usual, presets, tables } = state;
    const has = tables.length > 0;
    return html`<div class="pl-row pl-toolbar">
        <form class="pl-row pl-group" method="dialog" novalidate>
          ${button("new", true, "New sequence")}
          <label>&nbsp;of <input class="pl-button pl-amount" type="number" min="1" title="Enter makes a sequence"
            value="${usual}" data-own-enter> tokens</label></form>
        <span class="pl-row pl-group">
          <select class="pl-button pl-sequence" aria-label="sequence"
            title="the sequence that the next buttons change">${optionsOf(tables.map(({ name }) => name))}</select>
          ${button("append", has, `Append ${amount()}`)}${button("write", has, "Write 1")}
          ${button("fork", has, "Fork")}${button("free", has, "Free")}</span>
        <span class="pl-row pl-group">
          ${button("undo", step > 0, "Undo")}${button("redo", step < steps, "Redo")}
          ${button("reset", steps > 0, "Reset")}</span>
        ${presets.length ? html`<select class="pl-button pl-examples" aria-label="play an example">${optionsOf(presets)}</select>` : ""}
      </div>`;
  }

  /** The steps so far, and a slider to go back. */
  function history() {
    const { step, steps, log } = state;
    const entries = log.map(([text, bad], i) => {
      return html`<li class="${classes({ now: i + 1 === step, bad })}">${text}</li>`;
    });
    return html`${scrubber(step, steps)}
        <ol class="pl-log pl-soft" aria-label="steps so far">${entries}</ol>`;
  }

  /**
   * What a block holds, and in which slot its last token is.
   *
   * @param {number | null} blockId
   */
  function describe(blockId) {
    if (blockId === null) return POINT;
    const size = state.block_size;
    const said = [`Block ${blockId}: ${plural(state.counts[blockId], "reference")}`];
    let slot = "";
    for (const { name, index, held, first, range } of pool.owners[blockId]) {
      const offset = held - 1;
      said.push(`${name}’s logical block ${index}, ${range}`);
      const place = `${blockId} × ${size} + ${offset} = ${blockId * size + offset}`;
      slot = ` · token ${first + offset} is in slot ${place}`;
    }
    return said.join(" · ") + slot;
  }

  onModel();
  return pool.remove;
}

export default { render };
