import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import stage from "../../notebooks/pagedlab_lessons/widgets/stage.js";
import { Model, openHost, type } from "./browser_page.js";
import { recordingOf, sequenceOf, threeAnswers } from "./recordings.js";

const WORDS = ["The", " cat", " sat", " on", " a", " mat"];
const ATTACK = `<img src=x onerror="window.attacked = true">`;

let host;
let remove;

beforeEach((context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  host = openHost();
  remove = () => {};
});

afterEach(() => remove());

/** Shows a recording at a step; null plays it. */
function open(recorded, step = 0, more = {}) {
  remove();
  host.replaceChildren();
  const model = new Model({ recorded, live: false, ...more });
  remove = stage.render({ model, el: host });
  if (step !== null) go(step);
  return model;
}

const go = (step) => type(find(".pl-scrubber"), String(step));
const find = (selector) => host.querySelector(selector);
const all = (selector) => [...host.querySelectorAll(selector)];
const shownStep = () => Number(find(".ps-root").dataset.at);
const blockOf = (id) => find(`.pl-block[data-block="${id}"]`);
const button = (op) => find(`[data-op="${op}"]`);

test("each step of a recording is drawn as it is told, and the focus stays on a block", () => {
  const recording = threeAnswers();
  open(recording);
  const block = blockOf(1);
  block.focus();
  const counts = new Array(recording.drawn).fill(0);
  recording.steps.forEach((step, i) => {
    go(i);
    for (const [id, count] of Object.entries(step.counts ?? {})) counts[id] = count;
    const drawn = all(".pl-block").map((node) => Number(node.dataset.count));
    assert.deepEqual(drawn, counts, `step ${i}`);
    assert.equal(shownStep(), i);
    assert.equal(document.activeElement, block);
  });
});

test("words that look like markup are text, wherever they are", () => {
  const words = [ATTACK, ATTACK, " sat", " on", ATTACK, ATTACK];
  const texts = { [ATTACK]: sequenceOf(words, [0, 1]) };
  open(recordingOf({ used: 2, counts: { 0: 1, 1: 1 }, texts }));
  assert.equal(find(".ps-words").textContent.replace(/[01]/g, ""), words.join(""));
  all(".pl-block").forEach((block) => {
    block.focus();
  });
  assert.equal(all("img").length, 0);
  assert.equal(find(".ps-head b").textContent, ATTACK);
});

/** Words, how many of them are the prompt, what a chat template added, and what is read. */
const READ = [
  [["a", "b", "c", "d ", "e"], 2, {}, "abcd0 e1"],
  [["a", "b", "c", "d", "", "\n"], 6, {}, "abcd0"],
  [["", "user", "\n", "Why", "?", "So"], 5, { 0: "", 1: "user", 2: "" }, "userWhy0?So1"],
];

test("words are read with the numbers of their blocks, without the chat template", () => {
  for (const [words, prompt, roles, read] of READ) {
    const change = { prompt, roles, tokens: words.length };
    const texts = { r0: sequenceOf(words, [0, 1], change) };
    open(recordingOf({ counts: { 0: 1, 1: 1 }, texts }));
    assert.equal(find(".ps-words").textContent.trim(), read);
    if (words.length === 6 && prompt === 5) {
      blockOf(0).focus();
      assert.equal(find(".pl-detail").textContent, "Block 0: r0, tokens 0–3: “Why”");
    }
  }
});

test("the slider and the buttons move it", () => {
  open(threeAnswers());
  type(find(".pl-scrubber"), "7");
  button("on").click();
  assert.equal(shownStep(), 8);
  button("back").click();
  button("back").click();
  assert.equal(find(".pl-step").textContent, `Step 6 of ${threeAnswers().steps.length - 1}`);
  for (const name of [/Pause/, /Play/]) {
    button("play").click();
    assert.match(button("play").textContent, name);
  }
});

test("it plays to the end, and again from the step that its model names", (context) => {
  open(recordingOf({}, {}, {}, {}), null, { first: 1 });
  for (const step of [1, 2, 3, 3]) {
    assert.equal(shownStep(), step);
    context.mock.timers.tick(step === 1 ? 125 : 1000);
  }
  assert.match(button("play").textContent, /Again/);
  button("play").click();
  assert.equal(shownStep(), 1);
});

test("a sentence stays until the next one, and long enough to be read", (context) => {
  const steps = [{ said: "Nothing is here." }, {}, { said: "Something is here." }, {}];
  open(recordingOf(...steps), null, { speed: 4, pause: 1500 });
  assert.equal(find(".ps-rate [selected]").value, "4");
  context.mock.timers.tick(1499);
  assert.equal(shownStep(), 0);
  context.mock.timers.tick(1);
  assert.equal(shownStep(), 1);
  assert.equal(find(".pl-prompt").textContent, "Nothing is here.");
  context.mock.timers.tick(250);
  assert.equal(find(".pl-prompt").textContent, "Something is here.");
});

test("a recording below the screen waits until its squares are seen, or a reader moves it", (context) => {
  let tell;
  globalThis.IntersectionObserver = class {
    constructor(callback) {
      tell = (isIntersecting) => this.isObserving && callback([{ isIntersecting }]);
    }
    observe() {
      this.isObserving = true;
    }
    disconnect() {
      this.isObserving = false;
    }
  };
  for (const isMoved of [false, true]) {
    open(threeAnswers(), null);
    tell(false);
    context.mock.timers.tick(5000);
    assert.equal(shownStep(), 0);
    if (isMoved) button("on").click();
    tell(true);
    context.mock.timers.tick(125);
    context.mock.timers.tick(125);
    assert.equal(shownStep(), isMoved ? 1 : 2);
  }
});

test("a page that follows an engine does not fall back for ever, without motion, too", (context) => {
  for (const matches of [false, true]) {
    context.mock.method(globalThis, "matchMedia", () => ({ matches }));
    const model = open(recordingOf({}), null, { live: true, lag: 1 });
    model.change("recorded", recordingOf(...Array.from({ length: 1001 }, () => ({}))));
    for (let i = 0; i < 250; i += 1) context.mock.timers.tick(20);
    assert.ok(shownStep() > 900, String(shownStep()));
  }
});

test("of a large pool the first blocks and those in use are drawn, and they are large", () => {
  const recorded = {
    ...recordingOf({ counts: { 3: 1, 700: 1, 701: 1 } }, {}),
    num_blocks: 26214,
    drawn: 1024,
  };
  open(recorded, 0);
  const drawn = all(".pl-block").map((node) => Number(node.dataset.block));
  assert.equal(drawn.length, 66);
  assert.ok(drawn.includes(3) && drawn.includes(700) && drawn.includes(701));
  assert.equal(find(".pl-many"), null);
  assert.match(find(".ps-more").textContent, /Showing 66 of 26,214 blocks/);
});

test("another recording is shown, even at the step that is shown already", () => {
  const first = recordingOf({ used: 1, counts: { 0: 1 } }, {});
  const second = recordingOf({ used: 2, counts: { 3: 1, 4: 1 } }, {});
  const model = open(first, 1);
  model.change("recorded", second);
  assert.equal(
    all(".pl-used")
      .map((node) => node.dataset.block)
      .join(),
    "3,4",
  );
});

test("a word, its block and the table's cell light up together", () => {
  open(recordingOf({ counts: { 2: 1, 5: 1 }, texts: { r0: sequenceOf(WORDS, [2, 5]) } }));
  blockOf(2).focus();
  const lit = all(".pl-lit");
  assert.ok(lit.length > 2 && lit.every((node) => node.dataset.block === "2"));
  assert.equal(find(".pl-detail").textContent, "Block 2: r0, tokens 0–3: “The cat sat on”");
});

test("a block that a cache keeps says so, and words that were released point nowhere", () => {
  const release = { r0: { blocks: [0, []], tokens: 0, state: "stop" } };
  const steps = [
    { counts: { 2: 1, 5: 1 }, texts: { r0: sequenceOf(WORDS, [2, 5]) } },
    { counts: { 2: 0, 5: 0 }, kept: { 2: 1 }, texts: release },
  ];
  open(recordingOf(...steps), 1);
  assert.equal(all(".ps-run[data-block]").length, 0);
  blockOf(2).focus();
  assert.match(find(".pl-detail").textContent, /^Block 2 is free; its contents stay cached/);
  blockOf(5).focus();
  assert.equal(find(".pl-detail").textContent, "Block 5 is free.");
});

test("nothing goes on after the stage is removed", (context) => {
  const model = open(threeAnswers(), null);
  remove();
  context.mock.timers.tick(10_000);
  assert.equal(shownStep(), 0);
  assert.equal(model.listeners.size, 0);
});
