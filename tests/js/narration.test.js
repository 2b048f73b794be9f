import assert from "node:assert/strict";
import { test } from "node:test";
import { describeBlock, whatHappened } from "../../notebooks/pagedlab_lessons/widgets/narration.js";
import { Replay } from "../../notebooks/pagedlab_lessons/widgets/replay.js";
import { recordingOf, sequenceOf } from "./recordings.js";

const WORDS = ["The", " cat", " sat", " on", " a", " mat"];
const RUNNING = sequenceOf(WORDS, [0, 1]);

/** The sentence of the last step. */
function sentence(...steps) {
  const replay = new Replay(recordingOf(...steps));
  const last = steps.length - 1;
  const before = last ? replay.stateAfter(last - 1) : null;
  return whatHappened(replay.stateAfter(last), before);
}

test("requests wait, are admitted, run, are preempted, resume and end", () => {
  const waiting = { ...RUNNING, state: "waiting", blocks: [0, []] };
  const r0 = (change) => ({ texts: { r0: change } });
  const story = [
    [r0(waiting), "r0 waits."],
    [r0({ state: "running" }), "r0 is admitted."],
    [{}, "r0 continues."],
    [r0({ state: "swapped" }), "Out of blocks: r0 is preempted."],
    [r0({ state: "running" }), "r0 resumes."],
    [r0({ state: "waiting" }), "Out of blocks: r0 is preempted."],
    [r0({ state: "running" }), "r0 is admitted."],
    [r0({ state: "stop" }), "r0 ends, and its blocks are free."],
    [{}, "Nothing runs."],
  ];
  story.forEach(([, expected], i) => {
    const steps = story.slice(0, i + 1).map(([step]) => step);
    assert.equal(sentence(...steps), expected, `step ${i}`);
  });
});

/** Steps, and what is said of the last one. */
const texts = (n) => Object.fromEntries(Array.from({ length: n }, (_, i) => [`r${i}`, RUNNING]));
const running = { counts: { 0: 1, 1: 1 }, texts: { r0: RUNNING } };
const freed = { counts: { 0: 0, 1: 0 }, texts: { r0: { state: "stop", blocks: [0, []] } } };
const SAID = [
  [[{}], "No request is here yet. Every block is free."],
  [[{ texts: texts(2) }], "r0 and r1 are admitted."],
  [[{ texts: texts(4) }], "4 sequences are admitted."],
  [
    [running, { ...freed, kept: { 0: 1 } }],
    "r0 ends, and its blocks are free; 1 of them stays cached.",
  ],
  [
    [{ texts: texts(3) }, { texts: { r1: { state: "length" }, r2: { state: "abort" } } }],
    "r1 and r2 end, and their blocks are free.",
  ],
  [
    [running, { hits: [1, 2], copies: [[0, 3]], evicted: [4] }],
    "2 blocks found in the cache; block 0 is copied to 3; 1 cached block evicted.",
  ],
  [
    [running, { counts: { 2: 1 }, texts: { r0: { blocks: [2, [2]] } } }],
    "r0’s last block is full: it takes block 2.",
  ],
];

test("what happened in a step is one sentence", () => {
  for (const [steps, said] of SAID) assert.equal(sentence(...steps), said);
});

test("what a block holds", () => {
  const replay = new Replay(
    recordingOf(
      { counts: { 0: 1, 1: 1 }, texts: { r0: RUNNING } },
      { counts: { 0: 0, 1: 0 }, kept: { 0: 1 }, texts: { r0: { blocks: [0, []], tokens: 0 } } },
    ),
  );
  const before = replay.stateAfter(0);
  const after = replay.stateAfter(1);
  assert.match(describeBlock(before, null, 4), /^Point at a word or a block, or tap it/);
  const empty = new Replay(recordingOf({})).stateAfter(0);
  assert.equal(describeBlock(empty, null, 4), "", "no word is there yet");
  assert.equal(describeBlock(before, 0, 4), "Block 0: r0, tokens 0–3: “The cat sat on”");
  assert.equal(describeBlock(before, 1, 4), "Block 1: r0, token 4: “ a”");
  const cached = "Block 0 is free; its contents stay cached for the next identical prefix.";
  assert.equal(describeBlock(after, 0, 4), cached);
  assert.equal(describeBlock(after, 1, 4), "Block 1 is free.");
});
