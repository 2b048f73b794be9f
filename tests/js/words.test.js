import assert from "node:assert/strict";
import { test } from "node:test";
import { lookOf } from "../../notebooks/pagedlab_lessons/widgets/looks.js";
import {
  format,
  inBytes,
  percent,
  plural,
} from "../../notebooks/pagedlab_lessons/widgets/words.js";

test("numbers, counts and shares", () => {
  assert.equal(format(1024), "1,024");
  assert.equal(plural(1, "block"), "1 block");
  assert.equal(plural(0, "block"), "0 blocks");
  assert.equal(plural(2048, "token"), "2,048 tokens");
  assert.equal(percent(3, 4), "75%");
});

test("bytes are said in the largest unit that fits", () => {
  const expected = {
    0: "0 B",
    1023: "1023 B",
    1024: "1 KiB",
    1536: "1.5 KiB",
    [384 * 1024]: "384 KiB",
    [16 * 1024 ** 2]: "16 MiB",
    [12.5 * 1024 ** 3]: "12.5 GiB",
    [3 * 1024 ** 5]: "3 PiB",
    [5000 * 1024 ** 5]: "5000 PiB",
  };
  for (const [bytes, words] of Object.entries(expected))
    assert.equal(inBytes(Number(bytes)), words);
});

test("no number of bytes is written with an exponent", () => {
  assert.equal(inBytes(1012.5 * 1024 ** 2), "1013 MiB");
  for (let n = 1; n < 2 ** 52; n *= 1.37) assert.match(inBytes(n), /^[\d.]+ [KMGTP]?i?B$/);
});

test("49 sequences look different from each other", () => {
  const looks = Array.from({ length: 49 }, (_, i) => JSON.stringify(lookOf(i)));
  assert.equal(new Set(looks).size, 49);
});
