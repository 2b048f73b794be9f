import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import explore from "../../notebooks/pagedlab_lessons/widgets/explore.js";
import { FrameModel } from "../../notebooks/pagedlab_lessons/widgets/frames.js";
import { flip, openHost, type } from "./browser_page.js";

const STORED = {
  caption: "Move it.",
  controls: [
    { name: "size", kind: "slider", options: ["a", "b", "c"], fixed: false },
    { name: "text", kind: "text", options: [], fixed: true },
    { name: "dark", kind: "switch", options: [], fixed: false },
  ],
  at: { size: 1, text: "words", dark: false },
  parts: ["<p>", "one", "</p>", "two"],
  frames: [
    [0, 3],
    [0, 1, 3, 1, 2, 1],
  ],
  order: [0, 0, 0, 1, 1, 1], // size a light, a dark, b light, b dark, c light, c dark
};

let host;

beforeEach(() => {
  host = openHost();
  explore.render({ model: new FrameModel(STORED), el: host });
});

const picture = () => host.querySelector(".px-picture").innerHTML;

test("the drawings of a list are shown without Python, for each slider and switch", () => {
  assert.equal(picture(), "<p>one</p>");
  flip(host.querySelector('[data-name="dark"]'));
  assert.equal(picture(), "<p>two</p>");
  type(host.querySelector('[data-name="size"]'), "0");
  assert.equal(picture(), "<p>one</p>");
});

test("a text box shows its text and cannot be changed", () => {
  const text = host.querySelector('[data-name="text"]');
  assert.equal(text.value, "words");
  assert.equal(text.disabled, true);
  assert.equal(host.querySelector(".px-note").textContent, "Run the notebook to change text.");
});
