import assert from "node:assert/strict";
import { test } from "node:test";
import { Replay } from "../../notebooks/pagedlab_lessons/widgets/replay.js";
import { threeAnswers } from "./recordings.js";

/** All that a replay says of its step. */
const stateOf = ({ recording, ...state }) => structuredClone(state);

test("a state is the same whichever way one gets there", () => {
  const recording = threeAnswers();
  const replay = new Replay(recording);
  const states = recording.steps.map((_, step) => {
    replay.seek(step);
    return stateOf(replay);
  });
  for (let i = 0, step = 1; i < 3 * states.length; i += 1, step = (step * 7 + 3) % states.length) {
    replay.seek(step);
    assert.deepEqual(stateOf(replay), states[step], `step ${step}`);
  }
});
