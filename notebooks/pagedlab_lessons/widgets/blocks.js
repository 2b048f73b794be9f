// What the block grid and the stage draw alike: blocks, block tables, and the arrows of copies.

import { makeRoot, roving } from "./keyboard.js";
import { classes, find, html, listenTo, showList, withData } from "./markup.js";
import { format, percent, plural } from "./words.js";

/** @import { Markup } from "./markup.js" */

/**
 * @typedef {object} Table a sequence and its block table
 * @property {string} name
 * @property {string} color
 * @property {number} pattern number of its hatch, 0 to 6
 * @property {number} tokens
 * @property {number[]} blocks
 */

/**
 * A sequence that lists a block.
 *
 * @typedef {object} Owner
 * @property {string} name
 * @property {string} color
 * @property {number} pattern
 * @property {number} index number of its logical block
 * @property {number} held tokens that it has in the block
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

const MOST_BANDS = 4; // owners that are drawn in one block

/** The page of a pool, on which everything that belongs to the block pointed at lights up. */
export class PoolView {
  /**
   * @param {PoolModel} model
   * @param {HTMLElement} host
   * @param {string} label what a screen reader says of the widget
   */
  constructor(model, host, label) {
    this.model = model;
    this.root = makeRoot(label);
    this.keepTabStops = roving(this.root);
    /** @type {number | null} The block under pointer or focus. */
    this.pointed = null;
    this.resized = new ResizeObserver(() => this.onResize());
    this.stopListening = () => {};
    host.append(this.root);
  }

  /**
   * Follows the reader and the model.
   *
   * @param {Record<string, () => void>} modelListeners by the model's event
   */
  listen(modelListeners) {
    this.root.addEventListener("click", (event) => this.onClick(event));
    this.root.addEventListener("input", (event) => this.onInput(event));
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    for (const event of ["pointerover", "focusin"]) {
      this.root.addEventListener(event, ({ target }) => this.point(blockOf(target)));
    }
    this.root.addEventListener("pointerleave", ({ pointerType }) => {
      if (pointerType !== "touch") this.point(null); // what a finger touched stays lit
    });
    this.root.addEventListener("focusout", () => this.point(null));
    this.stopListening = listenTo(this.model, modelListeners);
    this.resized.observe(this.root);
  }

  /** Stops what would go on without the page. */
  remove() {
    this.resized.disconnect();
    this.stopListening();
  }

  /** @param {MouseEvent} _event */
  onClick(_event) {}

  /** @param {Event} _event */
  onInput(_event) {}

  /** @param {KeyboardEvent} _event */
  onKey(_event) {}

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

  /**
   * The place of blocks, block tables, and the sentence between them.
   *
   * @param {number} columns blocks a row
   * @returns {Markup}
   */
  canvas(columns) {
    return html`<div class="pl-canvas">
        <div class="pl-blocks" role="grid" aria-label="physical blocks"
          style="--columns: ${columns}" data-own></div>
        <svg class="pl-arrows" aria-hidden="true" data-own></svg></div>
      <p class="pl-detail" data-own></p>
      <div class="pl-tables" role="grid" aria-label="block tables" data-own></div>`;
  }
}

/**
 * The block of the node under pointer or focus.
 *
 * @param {EventTarget | null} target
 * @returns {number | null}
 */
export function blockOf(target) {
  const place = /** @type {Element} */ (target).closest("[data-block]");
  return place && Number(place.getAttribute("data-block"));
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
  return html`<div class="pl-stat"><b data-stat="${name}">${format(n)}</b>
    <small>${label}</small></div>`;
}

/**
 * The classes of a block.
 *
 * @param {number} blockId
 * @param {number} count references
 * @param {number[][]} copies [source, destination] of each copy of this step
 * @param {Record<string, unknown>} more
 * @returns {string}
 */
export function blockClass(blockId, count, copies, more) {
  const [source, destination] = [0, 1].map((side) => copies.some((copy) => copy[side] === blockId));
  const state = { used: count, empty: !count, shared: count > 1, source, destination };
  return classes({ block: true, ...state, ...more });
}

/**
 * How many tokens of a sequence its logical block number `index` holds.
 *
 * @param {number} tokens tokens of the whole sequence
 * @param {number} index
 * @param {number} blockSize tokens a block
 * @returns {number}
 */
function heldTokens(tokens, index, blockSize) {
  return Math.max(0, Math.min(blockSize, tokens - index * blockSize));
}

/**
 * For each block the sequences that list it.
 *
 * @param {number} numBlocks
 * @param {Table[]} tables
 * @param {number} blockSize tokens a block
 * @returns {Owner[][]}
 */
export function ownersOfBlocks(numBlocks, tables, blockSize) {
  /** @type {Owner[][]} */
  const owners = Array.from({ length: numBlocks }, () => []);
  for (const { name, color, pattern, tokens, blocks } of tables) {
    blocks.forEach((blockId, index) => {
      const held = heldTokens(tokens, index, blockSize);
      owners[blockId]?.push({ name, color, pattern, index, held });
    });
  }
  return owners;
}

/**
 * The numbers of the blocks, row by row.
 *
 * @param {number} numBlocks
 * @param {number} columns
 * @returns {number[][]}
 */
export function rowsOfBlocks(numBlocks, columns) {
  const blockIds = [...Array(numBlocks).keys()];
  const firsts = blockIds.filter((blockId) => blockId % columns === 0);
  return firsts.map((first) => blockIds.slice(first, first + columns));
}

/**
 * What a block looks like.
 *
 * @typedef {object} BlockLook
 * @property {number} count references
 * @property {Owner[]} owners
 * @property {string} css its classes
 * @property {string} said what a screen reader says of it
 */

/** @type {WeakMap<Element, string>} The looks of the blocks that each row shows. */
const shownLooks = new WeakMap();

/**
 * Shows rows of blocks. A row is looked at again only where a block of it looks different.
 *
 * @param {HTMLElement} root a widget
 * @param {number[][]} rows
 * @param {number} blockSize tokens a block
 * @param {(blockId: number) => BlockLook} lookOfBlock
 */
export function showBlocks(root, rows, blockSize, lookOfBlock) {
  const box = find(root, ".pl-blocks");
  showList(
    box,
    rows.map(() => html`<div class="pl-row" role="row" data-own></div>`),
  );
  rows.forEach((row, r) => {
    const looks = row.map(lookOfBlock);
    const sign = JSON.stringify([row, looks]);
    if (shownLooks.get(box.children[r]) === sign) return;
    shownLooks.set(box.children[r], sign);
    showList(
      box.children[r],
      row.map((blockId, i) => blockTemplate(blockId, looks[i], blockSize)),
    );
  });
}

/**
 * A block: a band for each owner, its number, and its reference count.
 *
 * @param {number} blockId
 * @param {BlockLook} look
 * @param {number} blockSize tokens a block
 * @returns {Markup}
 */
function blockTemplate(blockId, { count, owners, css, said }, blockSize) {
  const bands = owners.slice(0, MOST_BANDS).map(({ color, pattern, held }) => {
    const empty = percent(blockSize - held, blockSize);
    return html`<i class="pl-fill pl-hatch pl-p${pattern}"
      style="--c: ${color}; --empty: ${empty}"></i>`;
  });
  // The style writes the count. As text it would join the number: block 3 with two owners would
  // be read as "32".
  return html`<button type="button" role="gridcell" tabindex="-1" class="${css}"
    data-block="${blockId}" data-count="${count}" aria-label="block ${blockId}, ${said}"><span
    class="pl-bands">${bands}</span><span class="pl-id"
    aria-hidden="true">${blockId}</span></button>`;
}

/**
 * What names the row of a block table.
 *
 * @param {Table} table
 * @returns {Markup}
 */
export function tableName({ name, pattern, tokens }) {
  return html`<i class="pl-swatch pl-hatch pl-p${pattern}"></i>
    <span><b>${name}</b><br><small>${plural(tokens, "token")}</small></span>`;
}

/**
 * The entries of a block table, side by side.
 *
 * @param {Table} table
 * @param {number} blockSize tokens a block
 * @returns {Markup}
 */
export function tableStrip({ blocks, ...table }, blockSize) {
  const cells = blocks.map((blockId, index) => {
    const held = heldTokens(table.tokens, index, blockSize);
    const said = `${table.name}’s logical block ${index}, ${plural(held, "token")}`;
    const look = { count: 0, owners: [{ ...table, index, held }], css: "pl-cell", said };
    return blockTemplate(blockId, look, blockSize);
  });
  return html`<div class="pl-strip" role="presentation">${cells}</div>`;
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
