// Recordings for tests.

import { readFileSync } from "node:fs";

/** The recording that the front page plays. */
export function threeAnswers() {
  const file = new URL("../../data/recordings/three_answers.json", import.meta.url);
  return JSON.parse(readFileSync(file, "utf8"));
}

/** A recording of a small pool with these steps. */
export function recordingOf(...steps) {
  const numbered = steps.map((step, i) => ({ step: i, ...step }));
  return { format: 1, model: "", block_size: 4, num_blocks: 8, drawn: 8, steps: numbered };
}

/** A new sequence with these words in these blocks. */
export function sequenceOf(words, blocks, change = {}) {
  return {
    look: 0,
    prompt: 2,
    state: "running",
    tokens: words.length - 1,
    blocks: [0, blocks],
    words: [0, words],
    ...change,
  };
}
