// A recording of an engine, and the state after any of its steps. docs/trace.md tells the format,
// and Python's Replay gives the same states.

/**
 * What changed of a sequence in a step. A list of changes is [items to keep, new items].
 *
 * @typedef {object} SequenceChange
 * @property {number} [look] running number of its colour
 * @property {number} [prompt] tokens of its prompt
 * @property {Record<string, string>} [roles] what a chat template added: at the position of a word
 *   the role that it names, or ""
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
 * @property {string} [said] what happened
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
 * @property {Record<string, string>} roles
 * @property {string} state
 * @property {number} tokens
 * @property {number[]} blocks
 * @property {string[]} words
 */

const NEW = { look: 0, prompt: 0, roles: {}, state: "", tokens: 0, blocks: [], words: [] };

/** The state after a step of a recording that may still grow. */
export class Replay {
  step = -1;
  /** @type {RecordedStep} What the step changed. */
  now = { step: 0 };
  said = "";
  /** @type {number[]} */
  kept = [];
  /** @type {Map<string, SequenceState>} */
  texts = new Map();
  used = 0;
  cached = 0;
  copied = 0;

  /** @param {Recording} recording */
  constructor(recording) {
    this.recording = recording;
    /** @type {number[]} */
    this.counts = new Array(recording.drawn).fill(0);
  }

  /** @param {number} step the first one is number 0 */
  seek(step) {
    if (step < this.step) Object.assign(this, new Replay(this.recording));
    while (this.step < step) this.apply(this.recording.steps[this.step + 1]);
  }

  /** @param {RecordedStep} now */
  apply(now) {
    const { counts, copies = [], texts = {} } = now;
    this.step += 1;
    this.now = now;
    this.said = now.said ?? this.said;
    this.used = now.used ?? this.used;
    this.cached = now.cached ?? this.cached;
    this.copied += copies.length;
    Object.assign(this.counts, counts);
    Object.assign(this.kept, now.kept);
    for (const [name, change] of Object.entries(texts)) {
      const known = this.texts.get(name) ?? { ...NEW, name };
      const blocks = changed(known.blocks, change.blocks);
      const words = changed(known.words, change.words);
      this.texts.set(name, { ...known, ...change, blocks, words });
    }
  }
}

/**
 * @template T
 * @param {T[]} list
 * @param {[number, T[]]} [change]
 * @returns {T[]}
 */
function changed(list, [keep, added] = [list.length, []]) {
  return list.slice(0, keep).concat(added);
}
