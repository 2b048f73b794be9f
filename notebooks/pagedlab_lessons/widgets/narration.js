// The stage's sentences: what happened in a step, and what a block holds.

import { rolesOf } from "./chat_template.js";
import { plural } from "./words.js";

/** @import { RecordedStep, State } from "./replay.js" */

const MOST_NAMES = 3; // in one sentence
const MOST_COPIES = 2; // in one sentence
const MOST_TABLES = 2; // in what is said of a block
const POINT =
  "Point at a word or a block, or tap it: the word, its block and its cell in the table light up.";

/**
 * The names of the sequences to which the same happened in a step.
 *
 * @typedef {object} Events
 * @property {string[]} queued
 * @property {string[]} admitted
 * @property {string[]} resumed
 * @property {string[]} preempted
 * @property {string[]} finished
 */

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
  const parts = eventParts(state, eventsOf(state.now, before));
  if (!parts.length) parts.push(takenPart(state) ?? runningPart(state));
  const line = parts.join("; ");
  const beginsWithName = [...state.texts.keys()].some((name) => line.startsWith(name));
  return `${beginsWithName ? line : line[0].toUpperCase() + line.slice(1)}.`;
}

/**
 * Sorts the sequences that a step changed by what happened to them.
 *
 * @param {RecordedStep} now
 * @param {State | null} before
 * @returns {Events}
 */
function eventsOf(now, before) {
  /** @type {Events} */
  const events = { queued: [], admitted: [], resumed: [], preempted: [], finished: [] };
  for (const [name, { state }] of Object.entries(now.texts ?? {})) {
    const kind = eventOf(state, before?.texts.get(name)?.state);
    if (kind) events[kind].push(name);
  }
  return events;
}

/**
 * What happened to a sequence, by its state after the step and before it.
 *
 * @param {string | undefined} state undefined: it did not change
 * @param {string | undefined} before undefined: the sequence is new
 * @returns {keyof Events | null} null: nothing that is said
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
 * A part of the sentence for each kind of event.
 *
 * @param {State} state
 * @param {Events} events
 * @returns {string[]}
 */
function eventParts(state, { queued, admitted, resumed, preempted, finished }) {
  const { now } = state;
  const parts = [];
  if (queued.length) parts.push(clause(queued, "waits", "wait"));
  if (admitted.length) parts.push(clause(admitted, "is admitted", "are admitted"));
  if (resumed.length) parts.push(clause(resumed, "resumes", "resume"));
  if (now.hits?.length) parts.push(`${plural(now.hits.length, "block")} found in the cache`);
  for (const [source, destination] of (now.copies ?? []).slice(0, MOST_COPIES)) {
    parts.push(`block ${source} is copied to ${destination}`);
  }
  if (now.evicted?.length) parts.push(`${plural(now.evicted.length, "cached block")} evicted`);
  if (preempted.length) {
    parts.push(`out of blocks: ${clause(preempted, "is preempted", "are preempted")}`);
  }
  if (finished.length) parts.push(endedPart(state, finished));
  return parts;
}

/**
 * Which sequences ended, and what became of their blocks.
 *
 * @param {State} state
 * @param {string[]} names
 * @returns {string}
 */
function endedPart(state, names) {
  const ended = clause(names, "ends, and its blocks are free", "end, and their blocks are free");
  const cached = numCached(state);
  return cached ? `${ended}; ${cached} of them ${cached > 1 ? "stay" : "stays"} cached` : ended;
}

/**
 * How many of the blocks that became free in this step the prefix cache keeps.
 *
 * @param {State} state
 * @returns {number}
 */
function numCached({ now, kept }) {
  const freed = Object.entries(now.counts ?? {}).filter(([, count]) => count === 0);
  return freed.filter(([blockId]) => kept[Number(blockId)]).length;
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
