// What the block grid and the stage draw alike: blocks, block tables, and the arrows of copies.

import { classes, find, html, showList, withData } from "./markup.js";
import { percent, plural } from "./words.js";

/** @import { Markup } from "./markup.js" */

/**
 * @typedef {object} Table a sequence and its block table
 * @property {string} name
 * @property {string} color
 * @property {number} pattern number of its hatch, 0 to 6
 * @property {number} tokens
 * @property {(number | null)[]} blocks null: the table has something there that is no block
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

const MOST_BANDS = 4; // owners that are drawn in one block

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
      if (blockId !== null) owners[blockId]?.push({ name, color, pattern, index, held });
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
    const sign = row.map((blockId, i) => signOf(blockId, looks[i])).join();
    if (shownLooks.get(box.children[r]) === sign) return;
    shownLooks.set(box.children[r], sign);
    showList(
      box.children[r],
      row.map((blockId, i) => blockTemplate(blockId, looks[i], blockSize)),
    );
  });
}

/**
 * All that a block's template depends on: quicker to write than the template.
 *
 * @param {number} blockId
 * @param {BlockLook} look
 */
function signOf(blockId, { count, owners, css, said }) {
  return `${blockId} ${count} ${css} ${said} ${owners.map(({ color, held }) => color + held)}`;
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
    data-block="${blockId}" data-count="${count}"
    data-owners="${owners.map(({ name }) => name).join(" ")}"
    aria-label="block ${blockId}, ${said}"><span class="pl-bands">${bands}</span><span class="pl-id"
    aria-hidden="true">${blockId}</span><span class="pl-count"
    data-references="${count || ""}"></span></button>`;
}

/**
 * What names the row of a block table.
 *
 * @param {Table} table
 * @returns {Markup}
 */
export function tableName({ name, pattern, tokens }) {
  return html`<b>${name}</b><i class="pl-swatch pl-hatch pl-p${pattern}"></i>
    <small>${plural(tokens, "token")}</small>`;
}

/**
 * The entries of a block table, side by side.
 *
 * @param {Table} table
 * @param {number} blockSize tokens a block
 * @param {number | null} [lit] the block that is pointed at
 * @returns {Markup}
 */
export function tableStrip({ name, tokens, blocks }, blockSize, lit = null) {
  const cells = blocks.map((blockId, index) => {
    const held = heldTokens(tokens, index, blockSize);
    const css = classes({ cell: true, lit: blockId !== null && blockId === lit });
    const place = `${name}, logical block ${index}: physical block ${blockId}`;
    return html`<button type="button" role="gridcell" tabindex="-1" class="${css}"
      data-block="${blockId ?? ""}" aria-label="${place}, ${plural(held, "token")}"><i
      style="width: ${percent(held, blockSize)}"></i><span
      aria-hidden="true">${blockId ?? "?"}</span></button>`;
  });
  return html`<div class="pl-strip" role="presentation">${cells}</div>`;
}

/**
 * The node of a block, or null if it is not drawn.
 *
 * @param {HTMLElement} root
 * @param {number} blockId
 * @returns {HTMLElement | null}
 */
function blockNode(root, blockId) {
  return root.querySelector(`.pl-block${withData("block", blockId)}`);
}

/**
 * An arrow from edge to edge of two nodes of one canvas. Within a row it is drawn above the blocks,
 * so that their numbers can still be read.
 *
 * @param {HTMLElement | null} source
 * @param {HTMLElement | null} destination
 * @returns {Markup | string}
 */
function arrow(source, destination) {
  if (!source || !destination || source === destination) return "";
  const x0 = source.offsetLeft + source.offsetWidth / 2;
  const x1 = destination.offsetLeft + destination.offsetWidth / 2;
  const down = destination.offsetTop - source.offsetTop;
  const y0 = source.offsetTop + (down > 0 ? source.offsetHeight : 0);
  const y1 = destination.offsetTop + (down < 0 ? destination.offsetHeight : 0);
  const middleX = (x0 + x1) / 2;
  const middleY = down ? (y0 + y1) / 2 : y0 - 16 - Math.abs(x1 - x0) / 8;
  const path = `M${x0} ${y0} Q${middleX} ${middleY} ${x1} ${y1}`;
  const angle = (Math.atan2(y1 - middleY, x1 - middleX) * 180) / Math.PI;
  const place = `translate(${x1} ${y1}) rotate(${angle})`;
  return html`<path d="${path}" class="pl-halo"/>
    <path d="${path}" class="pl-arrow" pathLength="1"/>
    <path d="M-9 -6 L3 0 L-9 6 Z" transform="${place}" class="pl-head"/>`;
}

/**
 * Draws an arrow for each copy into the widget's canvas, between the blocks on the page.
 *
 * @param {HTMLElement} root
 * @param {number[][]} copies [source, destination] of each
 */
export function drawCopyArrows(root, copies) {
  const arrows = copies.map(([source, destination]) => {
    return arrow(blockNode(root, source), blockNode(root, destination));
  });
  find(root, ".pl-arrows").innerHTML = html`${arrows}`.source;
}
