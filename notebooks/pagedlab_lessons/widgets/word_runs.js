// The words of a sequence, cut where its blocks end.

import { rolesOf } from "./chat_template.js";

/** @import { SequenceState, State } from "./replay.js" */

/**
 * Neighbouring words of one block, or neighbouring words without a block.
 *
 * @typedef {object} WordRun
 * @property {number | null} index number of the logical block; null if the words have none yet
 * @property {number | null} blockId the physical block
 * @property {boolean} isPrompt whether the words are of the prompt
 * @property {boolean} isHeld whether the sequence holds the block now
 * @property {boolean} isCached whether the sequence released the block and a cache keeps the words
 * @property {boolean} endsBlock whether these are seen, and the next words are in another block
 * @property {string | null} role null for words to read; of what a chat template added, the role
 *   that it begins, or ""
 * @property {string} words
 */

/**
 * Cuts the words of a sequence into runs.
 *
 * @param {SequenceState} sequence
 * @param {State} state
 * @param {number} blockSize tokens a block
 * @returns {WordRun[]}
 */
export function wordRuns(sequence, state, blockSize) {
  const { name, words, tokens, prompt, blocks, lastBlocks } = sequence;
  const hasBlocks = blocks.length > 0;
  const table = hasBlocks ? blocks : lastBlocks;
  const withSlot = hasBlocks ? tokens : words.length;
  const roles = rolesOf(words, prompt);
  /** @type {WordRun[]} */
  const runs = [];
  words.forEach((word, position) => {
    const index = position < withSlot ? Math.floor(position / blockSize) : null;
    const isPrompt = position < prompt;
    const role = roles[position] ?? null;
    const previous = runs.at(-1);
    if (previous && isSameRun(previous, index, isPrompt, role)) {
      previous.words += word;
      return;
    }
    const blockId = table[index ?? -1] ?? null;
    const isHeld = hasBlocks && blockId !== null;
    const isCached = !hasBlocks && isKept(blockId, name, state);
    runs.push({ index, blockId, isPrompt, isHeld, isCached, endsBlock: false, role, words: word });
  });
  runs.forEach((run, i) => {
    const next = runs.slice(i + 1).find(isSeen);
    run.endsBlock = isSeen(run) && run.index !== next?.index;
    if (run.isPrompt) run.words = run.words.replace(/\n+/g, " ");
  });
  return runs;
}

/**
 * Whether a word goes on with a run.
 *
 * @param {WordRun} run
 * @param {number | null} index the word's logical block
 * @param {boolean} isPrompt
 * @param {string | null} role
 * @returns {boolean}
 */
function isSameRun(run, index, isPrompt, role) {
  return run.index === index && run.isPrompt === isPrompt && run.role === role;
}

/**
 * Whether a run has a role or words that can be seen: a prompt may end with spaces alone.
 *
 * @param {WordRun} run
 * @returns {boolean}
 */
function isSeen({ role, words }) {
  return role === null ? words.trim() !== "" : role !== "";
}

/**
 * Whether no sequence uses a block and a cache keeps in it what this sequence wrote.
 *
 * @param {number | null} blockId
 * @param {string} name
 * @param {State} state
 * @returns {boolean}
 */
function isKept(blockId, name, { kept, counts, contents }) {
  if (blockId === null || !kept[blockId] || counts[blockId]) return false;
  return contents.get(blockId)?.name === name;
}
