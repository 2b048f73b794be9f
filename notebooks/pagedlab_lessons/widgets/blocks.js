// What the block grid and the stage draw alike: blocks, block tables, and the arrows of copies.

import { makeRoot, pointing, roving } from "./keyboard.js";
import { lookOf, patch } from "./looks.js";
import { classes, find, html, showList, withData } from "./markup.js";
import { percent, plural } from "./words.js";

/** @import { Markup } from "./markup.js" */

/**
 * @typedef {object} Table a sequence and its block table
 * @property {string} name
 * @property {number} look running number of the sequence
 * @property {number} tokens
 * @property {number[]} blocks
 */

/**
 * A sequence that lists a block: the number of the logical block, and the tokens in it.
 *
 * @typedef {Table & {index: number, held: number}} Owner
 */

/**
 * @typedef {object} Pool
 * @property {number} size tokens a block
 * @property {number[]} counts reference count of each block
 * @property {Table[]} tables
 * @property {number[][]} copies [source, destination] of each copy of this step
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

/** The page of a pool, on which everything that belongs to the block pointed at lights up. */
export class PoolView {
  columns = 8;
  /** @type {number | null} The block under pointer or focus. */
  pointed = null;
  /** @type {Owner[][]} For each block the sequences that list it. */
  owners = [];
  changed = () => this.onModel();

  /**
   * @param {PoolModel} model
   * @param {HTMLElement} host
   * @param {string} label what a screen reader says of the widget
   */
  constructor(model, host, label) {
    this.model = model;
    this.root = makeRoot(label);
    this.keepTabStop = roving(this.root, ".pl-block", () => this.columns);
    this.root.addEventListener("click", ({ target }) => this.onClick(target));
    this.root.addEventListener("input", ({ target }) => this.onInput(target));
    pointing(this.root, BLOCK, (node) => this.point(node && Number(node.dataset.block)));
    model.on(CHANGES, this.changed);
    this.resized = new ResizeObserver(() => this.onResize());
    this.resized.observe(this.root);
    host.append(this.root);
  }

  /** Stops what would go on without the page. */
  remove() {
    this.resized.disconnect();
    this.model.off(CHANGES, this.changed);
  }

  /** The model has changed. */
  onModel() {}

  /** @param {any} _target */
  onClick(_target) {}

  /** @param {any} _target */
  onInput(_target) {}

  /** The page was laid out anew, or for the first time. */
  onResize() {}

  /**
   * What the block that is pointed at holds, or what to do if there is none.
   *
   * @param {number | null} _blockId
   */
  describe(_blockId) {
    return "";
  }

  /** @param {number | null} blockId */
  point(blockId) {
    if (blockId === this.pointed) return;
    this.pointed = blockId;
    this.lightUp();
  }

  /** Lights up every node of the block that is pointed at, and says what it holds. */
  lightUp() {
    for (const node of this.root.querySelectorAll(".pl-lit")) node.classList.remove("pl-lit");
    const nodes = this.root.querySelectorAll(withData("block", this.pointed ?? "none"));
    for (const node of nodes) node.classList.add("pl-lit");
    this.root.classList.toggle("pl-pointing", nodes.length > 1);
    find(this.root, ".pl-detail").textContent = this.describe(this.pointed);
  }

  /** The place of blocks, block tables, and the sentence between them. */
  canvas() {
    return html`<div class="pl-canvas">
        <div class="pl-blocks" role="group" aria-label="physical blocks"
          style="--columns: ${this.columns}" data-own></div>
        <svg class="pl-arrows" aria-hidden="true" data-own></svg></div>
      <p class="pl-detail" data-own></p>
      <div class="pl-tables" role="group" aria-label="block tables" data-own></div>`;
  }

  /**
   * Draws blocks and block tables.
   *
   * @param {Pool} pool
   * @param {number[]} shown the blocks that are drawn
   * @param {(blockId: number) => object} looks more classes of a block, see `classes`
   */
  paintPool({ size, counts, tables, copies }, shown, looks) {
    this.owners = counts.map(() => []);
    const rows = tables.map((table) => rowTemplate(table, size, this.owners));
    const blocks = shown.map((blockId) => {
      const count = counts[blockId];
      const owners = this.owners[blockId];
      const source = copies.some(([from]) => from === blockId);
      const destination = copies.some(([, to]) => to === blockId);
      const state = { used: count, shared: count > 1, source, destination };
      const css = classes({ block: true, ...state, ...looks(blockId) });
      const said = [plural(count, "reference"), ...owners.map(({ name }) => name)].join(", ");
      // The style writes the count. As text it would join the number: block 3 with two owners
      // would be read as "32".
      return html`<button class="${css}" data-block="${blockId}" data-count="${count}"
        aria-label="block ${blockId}, ${said}">${insideOf(blockId, owners, size)}</button>`;
    });
    showList(find(this.root, ".pl-blocks"), blocks);
    const longest = Math.max(0, ...tables.map((table) => table.blocks.length));
    const entries = Array.from({ length: longest }, (_, index) => html`<small>${index}</small>`);
    const header = html`<div class="pl-table pl-entries" aria-hidden="true">
      <small class="pl-name">logical block</small><div class="pl-strip">${entries}</div></div>`;
    showList(find(this.root, ".pl-tables"), [header, ...rows]);
    this.lightUp();
    this.keepTabStop();
    for (const box of /** @type {any} */ (this.root.querySelectorAll(SCROLLING))) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      box.tabIndex = scrolls ? 0 : -1; // its keys scroll it
    }
  }
}

/**
 * The row of a block table. It adds the sequence to the owners of its blocks.
 *
 * @param {Table} table
 * @param {number} size tokens a block
 * @param {Owner[][]} owners of each block
 * @returns {Markup}
 */
function rowTemplate(table, size, owners) {
  const { name, look, tokens } = table;
  const cells = table.blocks.map((blockId, index) => {
    const owner = { ...table, index, held: Math.max(0, Math.min(size, tokens - index * size)) };
    owners[blockId]?.push(owner);
    return html`<span class="pl-cell"
      data-block="${blockId}">${insideOf(blockId, [owner], size)}</span>`;
  });
  return html`<div class="pl-table" style="--c: ${lookOf(look).color}" data-sequence="${name}">
    <span class="pl-name">${patch(look)}
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
  const bands = owners
    .slice(0, MOST_BANDS)
    .map(({ look, held }) => patch(look, percent(size - held, size)));
  return html`<span class="pl-bands">${bands}</span><span class="pl-id"
    aria-hidden="true">${blockId}</span>`;
}

/**
 * The slider over the steps.
 *
 * @param {string} position in words
 * @param {number} last
 * @returns {Markup}
 */
export function scrubber(position, last) {
  return html`<label><span class="pl-step">${position}</span>
    <input type="range" class="pl-scrubber" aria-label="step" min="0"
      max="${Math.max(1, last)}" aria-valuetext="${position}"></label>`;
}

/**
 * A counter.
 *
 * @param {string} name
 * @param {number} n
 * @param {string} [label]
 * @returns {Markup}
 */
export function counter(name, n, label = name) {
  return html`<div><b data-stat="${name}">${n.toLocaleString("en")}</b>
    <small>${label}</small></div>`;
}

/**
 * Draws an arrow for each copy into the widget's canvas, from edge to edge of two blocks. Within a
 * row it is drawn above the blocks, so that their numbers can still be read.
 *
 * @param {HTMLElement} root
 * @param {number[][]} copies [source, destination] of each
 */
export function drawCopyArrows(root, copies) {
  const arrows = copies.map((blockIds) => {
    const [from, to] = blockIds.map((blockId) => {
      const block = withData("block", blockId);
      return /** @type {HTMLElement | null} */ (root.querySelector(`.pl-block${block}`));
    });
    if (!from || !to) return "";
    const down = Math.sign(to.offsetTop - from.offsetTop);
    const x = from.offsetLeft + from.offsetWidth / 2;
    const y = from.offsetTop + (down > 0 ? from.offsetHeight : 0);
    const across = to.offsetLeft + to.offsetWidth / 2 - x;
    const along = to.offsetTop + (down < 0 ? to.offsetHeight : 0) - y;
    const bend = down ? along / 2 : -16 - Math.abs(across) / 8;
    const angle = (Math.atan2(along - bend, across / 2) * 180) / Math.PI;
    const line = html`d="M0 0Q${across / 2} ${bend} ${across} ${along}" pathLength="1"`;
    return html`<g transform="translate(${x} ${y})"><path class="pl-halo" ${line}/><path ${line}/>
      <path d="M-9 -6L0 0L-9 6" transform="translate(${across} ${along}) rotate(${angle})"
        pathLength="1"/></g>`;
  });
  find(root, ".pl-arrows").innerHTML = html`${arrows}`.source;
}
