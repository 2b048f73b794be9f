// What the block grid and the stage draw alike: blocks, block tables, and the arrows of copies.

import { makeRoot, pointing, roving } from "./keyboard.js";
import { lookOf, patch } from "./looks.js";
import { classes, find, format, html, plural, show, withData } from "./markup.js";

/** @import { Markup } from "./markup.js" */

/**
 * @typedef {object} Table a sequence and its block table
 * @property {string} name
 * @property {number} look running number of the sequence
 * @property {number} tokens
 * @property {number[]} blocks
 */

/**
 * A sequence that lists a block: the number of the logical block, the tokens in it, the position of
 * the first one, and these tokens in words.
 *
 * @typedef {Table & {index: number, held: number, first: number, range: string}} Owner
 */

/**
 * @typedef {object} Pool
 * @property {number} block_size tokens a block
 * @property {number[]} counts reference count of each block
 * @property {Table[]} tables
 * @property {number[][]} copies [source, destination] of each copy of this step
 * @property {string} [selected] the sequence whose row is marked
 */

/**
 * What a view of a pool asks of its model: a widget in a notebook, a plain object on a page.
 *
 * @typedef {object} PoolModel
 * @property {(name: string) => any} get
 * @property {(message: object) => void} [send]
 * @property {(event: string, listener: () => void) => void} on
 * @property {(event: string, listener: () => void) => void} off
 */

const BLOCK = "[data-block]"; // a node of a block
const CHANGES = "change:state change:recorded change:live";
const SCROLLING = ".ps-texts, .ps-words, .pl-tables, .pl-log";
const MOST_BANDS = 4; // owners that are drawn in one block

/**
 * What a view of a pool does: the reader clicked on `target`, the reader moved or chose something,
 * the page was laid out anew or for the first time, the model has changed; and what it says of the
 * block that is pointed at, or of what to do if there is none.
 *
 * @typedef {object} PoolView
 * @property {(target: any) => void} onClick
 * @property {(target: any) => void} onInput
 * @property {() => void} onResize
 * @property {() => void} onModel
 * @property {(blockId: number | null) => string} describe
 */

/**
 * The page of a pool, on which everything that belongs to the block pointed at lights up.
 *
 * @param {{model: PoolModel, el: HTMLElement}} context
 * @param {string} label what a screen reader says of the widget
 * @param {PoolView} view
 */
export function poolPage({ model, el }, label, view) {
  const root = makeRoot(label);
  /** @type {number | null} The block under pointer or focus. */
  let pointed = null;
  /** @type {Owner[][]} For each block the sequences that list it. */
  const owners = [];
  const pool = { root, columns: 8, owners, canvas, paint, remove };

  /** Lights up every node of the block that is pointed at, and says what it holds. */
  function lightUp() {
    for (const node of root.querySelectorAll(".pl-lit")) node.classList.remove("pl-lit");
    const nodes = root.querySelectorAll(withData("block", pointed ?? "none"));
    for (const node of nodes) node.classList.add("pl-lit");
    root.classList.toggle("pl-pointing", nodes.length > 1);
    find(root, ".pl-detail").textContent = view.describe(pointed);
  }

  /**
   * Blocks, block tables, and the sentence between them.
   *
   * @param {Pool} state
   * @param {number[]} shown the blocks that are drawn
   * @param {(blockId: number) => object} looks more classes of a block, see `classes`
   */
  function canvas({ block_size: size, counts, tables, copies, selected }, shown, looks) {
    pool.owners = counts.map(() => []);
    const rows = tables.map((table) => {
      return rowTemplate(table, size, pool.owners, table.name === selected);
    });
    const blocks = shown.map((blockId) => {
      const count = counts[blockId];
      const owners = pool.owners[blockId];
      const source = copies.some(([from]) => from === blockId);
      const destination = copies.some(([, to]) => to === blockId);
      const state = { used: count, shared: count > 1, source, destination, ...looks(blockId) };
      const css = classes({ block: true, ...state });
      const said = [plural(count, "reference"), ...owners.map(({ name }) => name)].join(", ");
      // The style writes the count. As text it would join the number: block 3 with two owners
      // would be read as "32".
      return html`<button class="${css}" data-block="${blockId}" data-count="${count}" tabindex="-1"
        aria-label="block ${blockId}, ${said}">${insideOf(blockId, owners, size)}</button>`;
    });
    const longest = Math.max(0, ...tables.map((table) => table.blocks.length));
    const entries = [...Array(longest).keys()].map((index) => html`<small>${index}</small>`);
    return html`<div class="pl-canvas">
        <div class="pl-blocks" role="group" aria-label="physical blocks"
          style="--columns: ${pool.columns}">${blocks}</div>
        <svg class="pl-arrows" aria-hidden="true" data-own></svg></div>
      <p class="pl-detail" data-own></p>
      <div class="pl-tables" role="group" aria-label="block tables">
        <div class="pl-row pl-table pl-entries" aria-hidden="true">
          <small class="pl-name">logical block</small><div class="pl-strip">${entries}</div></div>
        ${rows}</div>`;
  }

  /**
   * Shows the page.
   *
   * @param {Markup} page
   */
  function paint(page) {
    show(root, page);
    lightUp();
    keepTabStop();
    for (const box of /** @type {any} */ (root.querySelectorAll(SCROLLING))) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      box.tabIndex = scrolls ? 0 : -1; // its keys scroll it
    }
  }

  /** Stops what would go on without the page. */
  function remove() {
    resized.disconnect();
    model.off(CHANGES, view.onModel);
  }

  const keepTabStop = roving(root, ".pl-block", () => pool.columns);
  root.addEventListener("click", ({ target }) => view.onClick(target));
  root.addEventListener("input", ({ target }) => view.onInput(target));
  pointing(root, BLOCK, (node) => {
    const blockId = node && Number(node.dataset.block);
    if (blockId === pointed) return;
    pointed = blockId;
    lightUp();
  });
  model.on(CHANGES, view.onModel);
  const resized = new ResizeObserver(view.onResize);
  resized.observe(root);
  el.append(root);
  return pool;
}

/**
 * The row of a block table. It adds the sequence to the owners of its blocks.
 *
 * @param {Table} table
 * @param {number} size tokens a block
 * @param {Owner[][]} owners of each block
 * @param {boolean} isSelected
 * @returns {Markup}
 */
function rowTemplate(table, size, owners, isSelected) {
  const { name, look, tokens } = table;
  const cells = table.blocks.map((blockId, index) => {
    const first = index * size;
    const held = Math.max(0, Math.min(size, tokens - first));
    const range = held < 2 ? `token ${first}` : `tokens ${first}–${first + held - 1}`;
    const owner = { ...table, index, held, first, range };
    owners[blockId]?.push(owner);
    return html`<span class="pl-cell"
      data-block="${blockId}">${insideOf(blockId, [owner], size)}</span>`;
  });
  const css = classes({ row: true, table: true, selected: isSelected, tint: isSelected });
  return html`<div class="${css}" style="--c: ${lookOf(look).color}" data-sequence="${name}">
    <span class="pl-row pl-name">${patch(look)}
      <span><b>${name}</b><br><small>${plural(tokens, "token")}</small></span></span>
    <div class="pl-strip">${cells}</div></div>`;
}

/**
 * The inside of a block: a band for each owner, and its number.
 *
 * @param {number} blockId
 * @param {Owner[]} owners
 * @param {number} size tokens a block
 * @returns {Markup}
 */
function insideOf(blockId, owners, size) {
  const bands = owners.slice(0, MOST_BANDS).map(({ look, held }) => patch(look, 1 - held / size));
  return html`<span class="pl-bands">${bands}</span><span class="pl-id pl-soft"
    aria-hidden="true">${blockId}</span>`;
}

/**
 * The slider over the steps.
 *
 * @param {number} step
 * @param {number} last
 * @returns {Markup}
 */
export function scrubber(step, last) {
  const position = `Step ${step} of ${last}`;
  return html`<label class="pl-row"><span class="pl-step">${position}</span>
    <input type="range" class="pl-scrubber" aria-label="step" min="0"
      max="${Math.max(1, last)}" aria-valuetext="${position}"></label>`;
}

/**
 * Counters, each with its name.
 *
 * @param {Record<string, number>} counts
 * @returns {Markup}
 */
export function counters(counts) {
  const boxes = Object.entries(counts).map(
    ([name, n]) => html`<div><b data-stat="${name}">${format(n)}</b>
      <small>${name}</small></div>`,
  );
  return html`<div class="pl-stats">${boxes}</div>`;
}

/**
 * Draws an arrow for each copy into the widget's canvas, from the middle of a block to that of the
 * other: the numbers in their corners can still be read.
 *
 * @param {HTMLElement} root
 * @param {number[][]} copies [source, destination] of each
 */
export function drawCopyArrows(root, copies) {
  const arrows = copies.map((blockIds) => {
    const [from, to] = blockIds.map((id) => find(root, `.pl-block${withData("block", id)}`));
    if (!from || !to) return "";
    const across = to.offsetLeft - from.offsetLeft;
    const down = to.offsetTop - from.offsetTop;
    const half = from.offsetWidth / 2;
    const turn = (Math.atan2(down, across) * 180) / Math.PI;
    const line = html`d="M0 0H${Math.hypot(across, down)}l-9 -6m9 6l-9 6" pathLength="1"`;
    return html`<g transform="translate(${from.offsetLeft + half} ${from.offsetTop + half})
      rotate(${turn})"><path class="pl-halo" ${line}/><path ${line}/></g>`;
  });
  find(root, ".pl-arrows").innerHTML = html`${arrows}`.source;
}
