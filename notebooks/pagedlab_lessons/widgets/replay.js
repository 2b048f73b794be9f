// A recording of an engine, and the state after any of its steps. recording.py tells the format,
// and its Replay gives the same states in Python.

/**
 * What changed of a sequence in a step. A list of changes is [items to keep, new items].
 *
 * @typedef {object} SequenceChange
 * @property {number} [look] running number of its colour
 * @property {number} [prompt] tokens of its prompt
 * @property {string} [state] waiting, running, swapped, or why it ended
 * @property {number} [tokens] tokens in its block table
 * @property {[number, number[]]} [blocks]
 * @property {[number, string[]]} [words]
 */

/**
 * What a step changed. What is left out did not change.
 *
 * @typedef {object} RecordedStep
 * @property {number} step the engine's step
 * @property {number} [used] blocks in use, of the whole pool
 * @property {number} [cached] blocks in the cache, of the whole pool
 * @property {Record<string, number>} [counts] reference count of each block
 * @property {Record<string, number>} [kept] 1 if a cache keeps the contents of a block, else 0
 * @property {number[][]} [copies] [source, destination] of each copied block
 * @property {number[]} [hits] blocks that were found in a cache
 * @property {number[]} [evicted] blocks that left a cache
 * @property {Record<string, SequenceChange>} [texts] changes by the name of the sequence
 */

/**
 * @typedef {object} Recording
 * @property {number} block_size tokens a block
 * @property {number} num_blocks blocks of the pool
 * @property {number} drawn blocks that are recorded one by one, the first ones of the pool
 * @property {RecordedStep[]} steps
 */

/**
 * A sequence after a step.
 *
 * @typedef {object} SequenceState
 * @property {string} name
 * @property {number} look
 * @property {number} prompt
 * @property {string} state
 * @property {number} tokens
 * @property {number[]} blocks
 * @property {string[]} words
 * @property {number[]} lastBlocks the blocks that it had before it released them
 */

/**
 * The contents of a block: which sequence wrote it, and as which of its logical blocks.
 *
 * @typedef {object} Contents
 * @property {string} name
 * @property {number} index
 */

/**
 * The state after a step. The sequences in it are replaced, never changed: states share them.
 *
 * @typedef {object} State
 * @property {number} step number of the step, from 0 on
 * @property {RecordedStep} now what that step changed
 * @property {Uint32Array} counts
 * @property {Uint8Array} kept
 * @property {Map<string, SequenceState>} texts
 * @property {Map<number, Contents>} contents
 * @property {number} used
 * @property {number} cached
 * @property {number} copied blocks copied so far
 */

/** Gives the state after any step of a recording that may still grow. */
export class Replay {
  /** @param {Recording} recording */
  constructor(recording) {
    this.recording = recording;
    /** @type {State | null} */
    this.lastState = null;
  }

  /** The number of steps. */
  get length() {
    return this.recording.steps.length;
  }

  /**
   * The state after a step, the first of which is number 0.
   *
   * @param {number} step
   * @returns {State}
   */
  stateAfter(step) {
    const { steps, drawn } = this.recording;
    const last = this.lastState;
    const state = last && last.step <= step ? copyOf(last) : emptyState(drawn);
    while (state.step < step) apply(state, steps[state.step + 1]);
    this.lastState = state;
    return state;
  }
}

/**
 * The state before the first step.
 *
 * @param {number} numBlocks
 * @returns {State}
 */
function emptyState(numBlocks) {
  return {
    step: -1,
    now: { step: 0 },
    counts: new Uint32Array(numBlocks),
    kept: new Uint8Array(numBlocks),
    texts: new Map(),
    contents: new Map(),
    used: 0,
    cached: 0,
    copied: 0,
  };
}

/**
 * A copy that can be changed.
 *
 * @param {State} state
 * @returns {State}
 */
function copyOf(state) {
  return {
    ...state,
    counts: state.counts.slice(),
    kept: state.kept.slice(),
    texts: new Map(state.texts),
    contents: new Map(state.contents),
  };
}

/**
 * Applies the next step to a state.
 *
 * @param {State} state
 * @param {RecordedStep} now
 */
function apply(state, now) {
  state.step += 1;
  state.now = now;
  state.used = now.used ?? state.used;
  state.cached = now.cached ?? state.cached;
  state.copied += now.copies?.length ?? 0;
  applyToBlocks(state, now);
  for (const [name, change] of Object.entries(now.texts ?? {})) {
    const sequence = changedSequence(name, state.texts.get(name), change);
    sequence.blocks.forEach((blockId, index) => {
      state.contents.set(blockId, { name, index });
    });
    state.texts.set(name, sequence);
  }
}

/**
 * Applies what a step says of blocks.
 *
 * @param {State} state
 * @param {RecordedStep} now
 */
function applyToBlocks(state, now) {
  for (const [key, count] of Object.entries(now.counts ?? {})) {
    const blockId = Number(key);
    const isReused = !state.counts[blockId] && !state.kept[blockId];
    if (isReused) state.contents.delete(blockId);
    state.counts[blockId] = count;
  }
  for (const [key, isKept] of Object.entries(now.kept ?? {})) state.kept[Number(key)] = isKept;
  for (const blockId of now.evicted ?? []) state.contents.delete(blockId);
}

/**
 * A sequence after a change.
 *
 * @param {string} name
 * @param {SequenceState | undefined} before
 * @param {SequenceChange} change
 * @returns {SequenceState}
 */
function changedSequence(name, before, change) {
  const known = before ?? newSequence(name);
  const { blocks, words, ...rest } = change;
  const sequence = {
    ...known,
    ...rest,
    blocks: blocks ? changedList(known.blocks, blocks) : known.blocks,
    words: words ? changedList(known.words, words) : known.words,
  };
  if (known.blocks.length && !sequence.blocks.length) sequence.lastBlocks = known.blocks;
  return sequence;
}

/**
 * @param {string} name
 * @returns {SequenceState}
 */
function newSequence(name) {
  return {
    name,
    look: 0,
    prompt: 0,
    state: "",
    tokens: 0,
    blocks: [],
    words: [],
    lastBlocks: [],
  };
}

/**
 * @template T
 * @param {T[]} list
 * @param {[number, T[]]} change
 * @returns {T[]}
 */
function changedList(list, [keep, added]) {
  return list.slice(0, keep).concat(added);
}
