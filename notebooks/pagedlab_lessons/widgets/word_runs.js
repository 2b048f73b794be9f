// The words of a sequence, cut where its blocks end.

import { html } from "./markup.js";

/**
 * @import { Markup } from "./markup.js"
 * @import { SequenceState } from "./replay.js"
 */

/**
 * Neighbouring words of one block, or neighbouring words without a block.
 *
 * @typedef {object} WordRun
 * @property {number | null} entry of the block table; null if the words have no block yet
 * @property {boolean} isPrompt
 * @property {string | undefined} role undefined for words to read; of what a chat template added,
 *   the role that it begins
 * @property {string} words
 */

/**
 * The words of a sequence, in the looks of its blocks.
 *
 * @param {SequenceState} text
 * @param {number} blockSize tokens a block
 * @returns {Markup[]}
 */
export function wordRuns(text, blockSize) {
  const runs = runsOf(text, blockSize);
  return runs.map((run, i) => {
    const endsBlock = run.entry !== runs[i + 1]?.entry;
    return runTemplate(run, text.blocks[run.entry ?? -1] ?? null, endsBlock);
  });
}

/**
 * @param {WordRun} run
 * @param {number | null} id of its block
 * @param {boolean} endsBlock whether the next words are in another block
 * @returns {Markup}
 */
function runTemplate({ entry, isPrompt, role, words }, id, endsBlock) {
  const block = id === null ? "" : html`data-block="${id}"`;
  if (role) {
    return html`<span class="ps-role" title="written by the chat template" ${block}>${role}</span>`;
  }
  const state = id === null ? "new" : "held";
  const look = `ps-run ps-${state} ${isPrompt ? "ps-asked" : ""} ${(entry ?? 0) % 2 ? "ps-odd" : ""}`;
  // The number is of the words before it, so it is beside them, and a gap comes after it.
  const number = id !== null && endsBlock ? html`<sub>${id}</sub>` : "";
  const shown = isPrompt ? words.replace(/\n+/g, " ") : words;
  const [, seen, gap] = /** @type {string[]} */ (shown.match(/^(.*?)(\s*)$/s));
  return seen ? html`<span class="${look}" ${block}>${seen}${number}${gap}</span>` : html`${gap}`;
}

/**
 * The runs of words, without those that a chat template added and that nobody reads.
 *
 * @param {SequenceState} text
 * @param {number} blockSize
 * @returns {WordRun[]}
 */
function runsOf({ words, prompt, roles, tokens }, blockSize) {
  /** @type {WordRun[]} */
  const runs = [];
  words.forEach((word, position) => {
    const role = roles[position];
    if (role === "") return;
    const entry = position < tokens ? Math.floor(position / blockSize) : null;
    const isPrompt = position < prompt;
    const run = runs.at(-1);
    if (run?.entry === entry && run.isPrompt === isPrompt && run.role === role) run.words += word;
    else runs.push({ entry, isPrompt, role, words: word });
  });
  return runs;
}
