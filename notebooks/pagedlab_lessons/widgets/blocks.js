// What the block grid and the stage draw alike: the inside of a block, and the arrow of a copy.

import { find, html, withData } from "./markup.js";
import { percent } from "./words.js";

/** @import { Markup } from "./markup.js" */

/**
 * A sequence that lists a block.
 *
 * @typedef {object} Owner
 * @property {string} name
 * @property {string} color
 * @property {number} pattern number of its hatch, 0 to 6
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
export function heldTokens(tokens, index, blockSize) {
  return Math.max(0, Math.min(blockSize, tokens - index * blockSize));
}

/**
 * The inside of a block: a band for each owner, its number, and its reference count.
 *
 * @param {number} blockId
 * @param {number} count
 * @param {Owner[]} owners
 * @param {number} blockSize tokens a block
 * @returns {Markup}
 */
export function blockInside(blockId, count, owners, blockSize) {
  const bands = owners.slice(0, MOST_BANDS).map(({ color, pattern, held }) => {
    const empty = percent(blockSize - held, blockSize);
    return html`<i class="pl-fill pl-hatch pl-p${pattern}"
      style="--c: ${color}; --empty: ${empty}"></i>`;
  });
  const number = html`<span class="pl-id" aria-hidden="true">${blockId}</span>`;
  // Its style writes the count. As text it would join the number: block 3 with two owners would
  // be read as "32".
  const counter = html`<span class="pl-count" data-references="${count || ""}"></span>`;
  return html`<span class="pl-bands">${bands}</span>${number}${counter}`;
}

/**
 * An arrow for each copy, between the blocks as they are on the page.
 *
 * @param {HTMLElement} root a widget with `.pl-block` nodes
 * @param {number[][]} copies [source, destination] of each
 * @returns {Markup}
 */
export function copyArrows(root, copies) {
  const arrows = copies.map(([source, destination]) => {
    return arrow(blockNode(root, source), blockNode(root, destination));
  });
  return html`${arrows}`;
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
 * Draws the arrows of the copies into the widget's canvas.
 *
 * @param {HTMLElement} root
 * @param {number[][]} copies
 */
export function drawCopyArrows(root, copies) {
  find(root, ".pl-arrows").innerHTML = copyArrows(root, copies).source;
}
