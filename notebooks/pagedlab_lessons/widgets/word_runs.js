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
 * @property {number | undefined} id of the block; undefined if the words have none
 * @property {number} entry of the block table
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
  return runs.map((run, i) => runTemplate(run, run.id !== runs[i + 1]?.id));
}

/**
 * @param {WordRun} run
 * @param {boolean} endsBlock whether the next words are in another block
 * @returns {Markup}
 */
function runTemplate({ id, entry, isPrompt, role, words }, endsBlock) {
  const isHeld = id !== undefined;
  const block = isHeld ? html`data-block="${id}"` : "";
  if (role) {
    return html`<small class="ps-role" title="written by the chat template" ${block}>${role}</small>`;
  }
  const look = `ps-run ${isHeld ? "ps-held pl-tint" : "ps-new"} ${isPrompt ? "ps-asked" : ""} ${entry % 2 ? "ps-odd" : ""}`;
  // The number is of the words before it, so it is beside them, and a gap comes after it.
  const number = isHeld && endsBlock ? html`<sub>${id}</sub>` : "";
  const shown = isPrompt ? words.replace(/\n+/g, " ") : words;
  const seen = shown.trimEnd();
  const gap = shown.slice(seen.length);
  return seen ? html`<span class="${look}" ${block}>${seen}${number}${gap}</span>` : html`${gap}`;
}

/**
 * The runs of words, without those that a chat template added and that nobody reads.
 *
 * @param {SequenceState} text
 * @param {number} blockSize
 * @returns {WordRun[]}
 */
function runsOf({ words, prompt, roles, tokens, blocks }, blockSize) {
  /** @type {WordRun[]} */
  const runs = [];
  words.forEach((word, position) => {
    const role = roles[position];
    if (role === "") return;
    const entry = Math.floor(position / blockSize);
    const id = position < tokens ? blocks[entry] : undefined;
    const isPrompt = position < prompt;
    const run = runs.at(-1);
    if (run && run.id === id && run.isPrompt === isPrompt && run.role === role) run.words += word;
    else runs.push({ id, entry, isPrompt, role, words: word });
  });
  return runs;
}
