// Prints the state after each step of the recording on stdin, as one line of JSON a step.

import { readFileSync } from "node:fs";
import { Replay } from "../../notebooks/pagedlab_lessons/widgets/replay.js";

const recording = JSON.parse(readFileSync(0, "utf8"));
const replay = new Replay(recording);

recording.steps.forEach((_, step) => {
  replay.seek(step);
  const { counts, kept, texts, used, cached, copied } = replay;
  const keptBlocks = [...kept.keys()].filter((blockId) => kept[blockId]);
  const sequences = [...texts.values()].map((sequence) => {
    const { name, state, tokens, blocks, words, look, prompt } = sequence;
    return [name, { state, tokens, blocks, words, look, prompt }];
  });
  const state = {
    counts: [...counts],
    kept: keptBlocks,
    texts: Object.fromEntries(sequences),
    used,
    cached,
    copied,
  };
  console.log(JSON.stringify(state));
});
