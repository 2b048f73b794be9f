// The guess.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import guess from "../../notebooks/pagedlab_lessons/widgets/guess.js";
import { Model, openHost } from "./browser_page.js";

let host;

beforeEach(() => {
  host = openHost();
});

test("a guess is told after it was typed, and the answer hides the button", () => {
  const values = { question: "How <b>much</b>?", unit: "%", reveals: true, typed: "", page: "" };
  const model = new Model(values);
  const remove = guess.render({ model, el: host });
  const [input, button] = ["input", "button"].map((name) => host.querySelector(name));
  assert.equal(host.querySelectorAll("label b").length, 1, "the question is text");
  input.value = "30";
  input.dispatchEvent(new Event("change", { bubbles: true }));
  assert.equal(model.get("typed"), "30");
  button.click();
  assert.equal(model.get("shown"), true);
  assert.equal(model.saved.length, 2);
  const root = host.firstElementChild;
  assert.ok(root.classList.contains("pg-waiting"), "the cell's other outputs wait too");
  model.change("page", "A number, please.");
  assert.ok(root.classList.contains("pg-waiting"), "a word is no answer");
  assert.equal(button.hidden, false);
  assert.equal(host.querySelector("[aria-live]").textContent, "A number, please.");
  model.change("page", '<div class="pg-scale">it is 42</div>');
  assert.ok(!root.classList.contains("pg-waiting"));
  assert.equal(button.hidden, true);
  assert.equal(host.querySelector("[aria-live]").textContent, "it is 42");
  remove();
  assert.equal(model.listeners.size, 0);
});
