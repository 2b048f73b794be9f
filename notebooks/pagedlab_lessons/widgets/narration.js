// The stage's sentences: what happened in a step, and what a block holds.

import { rolesOf } from "./chat_template.js";
import { plural } from "./words.js";

/** @import { RecordedStep, State } from "./replay.js" */

const MOST_NAMES = 3; // in one sentence
const MOST_COPIES = 2; // in one sentence
const MOST_TABLES = 2; // in what is said of a block
const POINT =
  "Point at a word or a block, or tap it: the word, its block and its cell in the table light up.";

/** What is said of one sequence, and of several, to which the same happened in a step. */
const HAPPENED = {
  queued: ["waits", "wait"],
  admitted: ["is admitted", "are admitted"],
  resumed: ["resumes", "resume"],
  preempted: ["is preempted", "are preempted"],
  finished: ["ends, and its blocks are free", "end, and their blocks are free"],
};

/**
 * What happened in a step, as one sentence.
 *
 * @param {State} state after the step
 * @param {State | null} before the state before it, null at the first step
 * @returns {string}
 */
export function whatHappened(state, before) {
  const isFirst = state.step === 0;
  if (isFirst && !Object.keys(state.now.texts ?? {}).length) {
    return "No request is here yet. Every block is free.";
  }
  const parts = [...eventsOf(state, before), ...poolEvents(state.now)];
  if (!parts.length) parts.push(takenPart(state) ?? runningPart(state));
  const line = parts.join("; ");
  const beginsWithName = [...state.texts.keys()].some((name) => line.startsWith(name));
  return `${beginsWithName ? line : line[0].toUpperCase() + line.slice(1)}.`;
}

/**
 * What happened to the sequences that a step changed.
 *
 * @param {State} state
 * @param {State | null} before
 * @returns {string[]}
 */
function eventsOf(state, before) {
  /** @type {Record<string, string[]>} */
  const names = {};
  for (const [name, now] of Object.entries(state.now.texts ?? {})) {
    const kind = eventOf(now.state, before?.texts.get(name)?.state) ?? "";
    names[kind] = [...(names[kind] ?? []), name];
  }
  const kinds = Object.keys(HAPPENED).filter((kind) => names[kind]);
  return kinds.map((kind) => {
    const [one, several] = HAPPENED[/** @type {keyof typeof HAPPENED} */ (kind)];
    const said = clause(names[kind], one, several);
    if (kind === "preempted") return `out of blocks: ${said}`;
    return kind === "finished" ? said + cachedWords(state) : said;
  });
}

/**
 * What happened to a sequence, by its state after the step and before it.
 *
 * @param {string | undefined} state undefined: it did not change
 * @param {string | undefined} before undefined: the sequence is new
 * @returns {keyof typeof HAPPENED | null} null: nothing that is said
 */
function eventOf(state, before) {
  switch (state) {
    case undefined:
      return null;
    case "waiting":
      return before ? "preempted" : "queued";
    case "swapped":
      return "preempted";
    case "running":
      return before === "swapped" ? "resumed" : "admitted";
    default:
      return "finished";
  }
}

/**
 * What the pool and its cache did in a step.
 *
 * @param {RecordedStep} now
 * @returns {string[]}
 */
function poolEvents({ hits = [], copies = [], evicted = [] }) {
  const parts = [];
  if (hits.length) parts.push(`${plural(hits.length, "block")} found in the cache`);
  for (const [source, destination] of copies.slice(0, MOST_COPIES)) {
    parts.push(`block ${source} is copied to ${destination}`);
  }
  if (evicted.length) parts.push(`${plural(evicted.length, "cached block")} evicted`);
  return parts;
}

/**
 * How many of the blocks that became free in this step the prefix cache keeps.
 *
 * @param {State} state
 * @returns {string}
 */
function cachedWords({ now, kept }) {
  const freed = Object.entries(now.counts ?? {}).filter(([, count]) => count === 0);
  const cached = freed.filter(([blockId]) => kept[Number(blockId)]).length;
  return cached ? `; ${cached} of them ${cached > 1 ? "stay" : "stays"} cached` : "";
}

/**
 * Which blocks were taken, or null if none was.
 *
 * @param {State} state
 * @returns {string | null}
 */
function takenPart({ now, contents }) {
  const taken = [];
  for (const [key, count] of Object.entries(now.counts ?? {})) {
    const content = contents.get(Number(key));
    if (count === 1 && content) taken.push({ blockId: key, name: content.name });
  }
  if (!taken.length) return null;
  if (taken.length > 1) return `${plural(taken.length, "block")} are taken`;
  const [{ blockId, name }] = taken;
  return `${name}’s last block is full: it takes block ${blockId}`;
}

/**
 * Which sequences are running.
 *
 * @param {State} state
 * @returns {string}
 */
function runningPart({ texts }) {
  const running = [...texts.values()].filter(({ state }) => state === "running");
  const names = running.map(({ name }) => name);
  return names.length ? clause(names, "continues", "continue") : "nothing runs";
}

/**
 * Names and what they do: "r0 waits", "r0 and r1 wait", "5 sequences wait".
 *
 * @param {string[]} names
 * @param {string} singular
 * @param {string} several
 * @returns {string}
 */
function clause(names, singular, several) {
  const subject =
    names.length > MOST_NAMES ? plural(names.length, "sequence") : names.join(" and ");
  return `${subject} ${names.length > 1 ? several : singular}`;
}

/**
 * What a block holds, as one sentence.
 *
 * @param {State} state
 * @param {number | null} blockId null: none is pointed at
 * @param {number} blockSize tokens a block
 * @returns {string}
 */
export function describeBlock(state, blockId, blockSize) {
  if (blockId === null) return state.texts.size ? POINT : "";
  const block = `Block ${blockId}`;
  const places = placesOf(state, blockId, blockSize);
  if (places.length) return `${block}: ${places.slice(0, MOST_TABLES).join("; ")}`;
  if (state.kept[blockId]) {
    return `${block} is free; its contents stay cached for the next identical prefix.`;
  }
  return `${block} is free.`;
}

/**
 * Where a block is in the block tables, each place once.
 *
 * @param {State} state
 * @param {number} blockId
 * @param {number} blockSize
 * @returns {string[]}
 */
function placesOf({ texts }, blockId, blockSize) {
  /** @type {Set<string>} */
  const places = new Set();
  for (const { name, blocks, tokens, words, prompt } of texts.values()) {
    const index = blocks.indexOf(blockId);
    if (index < 0) continue;
    const first = index * blockSize;
    const stop = Math.min(tokens, first + blockSize);
    const last = Math.max(first, stop - 1);
    const roles = rolesOf(words, prompt);
    const written = words.map((word, i) => (typeof roles[i] === "string" ? "" : word));
    const said = written.slice(first, stop).join("");
    const range = first === last ? `token ${first}` : `tokens ${first}–${last}`;
    places.add(`${name}, ${range}: “${said}”`);
  }
  return [...places];
}
