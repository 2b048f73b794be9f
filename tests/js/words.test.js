import assert from "node:assert/strict";
import { test } from "node:test";
import { format, percent, plural } from "../../notebooks/pagedlab_lessons/widgets/words.js";

test("numbers, counts and shares", () => {
  assert.equal(format(1024), "1,024");
  assert.equal(plural(1, "block"), "1 block");
  assert.equal(plural(0, "block"), "0 blocks");
  assert.equal(plural(2048, "token"), "2,048 tokens");
  assert.equal(percent(3, 4), "75%");
});
