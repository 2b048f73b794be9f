import assert from "node:assert/strict";
import { test } from "node:test";
import { lookOf } from "../../notebooks/pagedlab_lessons/widgets/looks.js";
import { format, percent, plural } from "../../notebooks/pagedlab_lessons/widgets/words.js";

test("numbers, counts and shares", () => {
  assert.equal(format(1024), "1,024");
  assert.equal(plural(1, "block"), "1 block");
  assert.equal(plural(0, "block"), "0 blocks");
  assert.equal(plural(2048, "token"), "2,048 tokens");
  assert.equal(percent(3, 4), "75%");
});

test("49 sequences look different from each other", () => {
  const looks = Array.from({ length: 49 }, (_, i) => JSON.stringify(lookOf(i)));
  assert.equal(new Set(looks).size, 49);
});
