import assert from "node:assert/strict";
import { test } from "node:test";
import { rolesOf } from "../../notebooks/pagedlab_lessons/widgets/chat_template.js";

test("a message of the system is part of the template", () => {
  const words = ["", "system", "\n", "You", " are", "", "\n", "", "user", "\n", "Hi"];
  assert.deepEqual(rolesOf(words, 11), ["", "system", "", "", "", "", "", "", "user", "", null]);
});

test("a prompt that is no chat is read as it is, incomplete characters too", () => {
  assert.deepEqual(rolesOf(["", "\n", "user"], 3), [null, null, null]);
  assert.deepEqual(rolesOf(["user", "\n", "Why"], 2), [null, null]);
});
