import assert from "node:assert/strict";
import { test } from "node:test";
import { Replay } from "../../notebooks/pagedlab_lessons/widgets/replay.js";
import { recordingOf, sequenceOf, threeAnswers } from "./recordings.js";

test("a state is the same whichever way one gets there, and does not change later", () => {
  const recording = threeAnswers();
  const forward = new Replay(recording);
  const states = recording.steps.map((_, step) => structuredClone(forward.stateAfter(step)));
  const jumping = new Replay(recording);
  const { length } = jumping;
  const given = [];
  for (let i = 0, step = 1; i < 3 * length; i += 1, step = (step * 7 + 3) % length) {
    given.push([jumping.stateAfter(step), step]);
  }
  for (const [state, step] of given) assert.deepEqual(state, states[step], `step ${step}`);
});

test("a recording may grow", () => {
  const whole = threeAnswers();
  const replay = new Replay({ ...whole, steps: whole.steps.slice(0, 20) });
  replay.stateAfter(19);
  replay.recording = whole;
  assert.equal(replay.length, whole.steps.length);
  assert.deepEqual(replay.stateAfter(24), new Replay(whole).stateAfter(24));
});

test("a block is its writer's until it is reused or evicted", () => {
  const r0 = sequenceOf(["a", "b", "c", "d", "e"], [5, 6]);
  const replay = new Replay(
    recordingOf(
      { counts: { 5: 1, 6: 1 }, texts: { r0 } },
      { counts: { 5: 0, 6: 0 }, kept: { 5: 1 }, texts: { r0: { blocks: [0, []], tokens: 0 } } },
      { counts: { 6: 1 } },
      { kept: { 5: 0 }, evicted: [5] },
    ),
  );
  assert.deepEqual(replay.stateAfter(1).texts.get("r0").lastBlocks, [5, 6]);
  const written = [0, 1, 2, 3].map((step) => [...replay.stateAfter(step).contents.keys()]);
  assert.deepEqual(written, [[5, 6], [5, 6], [5], []]);
});
