// The stage's sentences: what happened in a step, and what a block holds.

import { plural } from "./words.js";

/** @import { RecordedStep, State } from "./replay.js" */

const MOST_NAMES = 3; // in one sentence
const MOST_COPIES = 2; // in one sentence
const MOST_TABLES = 2; // in what is said of a block

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
  const parts = eventParts(state.now, eventsOf(state.now, before));
  if (!parts.length) parts.push(takenPart(state) ?? runningPart(state));
  const line = parts.join("; ");
  const beginsWithName = /^r\d/.test(line);
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
    case "dropped":
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
 * @param {RecordedStep} now
 * @param {Events} events
 * @returns {string[]}
 */
function eventParts(now, { queued, admitted, resumed, preempted, finished }) {
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
  if (finished.length) {
    parts.push(clause(finished, "ends, and its blocks are free", "end, and their blocks are free"));
  }
  return parts;
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
  return names.length ? clause(names, "writes on", "write on") : "nothing runs";
}

/**
 * Names and what they do: "r0 waits", "r0 and r1 wait", "5 texts wait".
 *
 * @param {string[]} names
 * @param {string} singular
 * @param {string} several
 * @returns {string}
 */
function clause(names, singular, several) {
  const subject = names.length > MOST_NAMES ? plural(names.length, "text") : names.join(" and ");
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
  if (blockId === null) {
    return "Point at a word or a block: both light up, and the table’s cell between them.";
  }
  const places = placesOf(state, blockId, blockSize);
  if (places.length) return `Block ${blockId}: ${places.slice(0, MOST_TABLES).join("; ")}`;
  if (state.kept[blockId]) {
    return `Block ${blockId} is free; its contents stay cached for the next identical prefix.`;
  }
  return `Block ${blockId} is free.`;
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
  for (const { name, blocks, tokens, words } of texts.values()) {
    const index = blocks.indexOf(blockId);
    if (index < 0) continue;
    const first = index * blockSize;
    const stop = Math.min(tokens, first + blockSize);
    const last = Math.max(first, stop - 1);
    const said = words.slice(first, stop).join("");
    places.add(`${name}, tokens ${first}–${last}: “${said}”`);
  }
  return [...places];
}
