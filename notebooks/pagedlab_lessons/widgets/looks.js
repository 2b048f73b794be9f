// How a sequence looks, by its running number: as `look_of` in pagedlab_lessons/colors.py.

import { html } from "./markup.js";

/** @import { Markup } from "./markup.js" */

const COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"];
const HATCHES = 7;

/**
 * The colour and the number of the hatch. The hatch changes with every seventh sequence, so both
 * together tell 49 sequences apart.
 *
 * @param {number} look running number of the sequence
 * @returns {{color: string, pattern: number}}
 */
export function lookOf(look) {
  const round = Math.floor(look / COLORS.length);
  return { color: COLORS[look % COLORS.length], pattern: (look + round) % HATCHES };
}

/**
 * A patch in the look of a sequence.
 *
 * @param {number} look
 * @param {number} [empty] share of its height that is pale
 * @returns {Markup}
 */
export function patch(look, empty = 0) {
  const { color, pattern } = lookOf(look);
  const style = `--c: ${color}; --empty: ${100 * empty}%`;
  return html`<i class="pl-hatch pl-p${pattern}" style="${style}"></i>`;
}
