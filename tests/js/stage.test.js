import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import stage from "../../notebooks/pagedlab_lessons/widgets/stage.js";
import { Model, openHost, press, type } from "./browser_page.js";
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

/** Shows a recording at a step; -1 plays it. */
function open(recorded, step = 0, more = {}) {
  const model = new Model({ recorded, step, live: false, ...more });
  remove = stage.render({ model, el: host });
  return model;
}

const find = (selector) => host.querySelector(selector);
const all = (selector) => [...host.querySelectorAll(selector)];
const shownStep = () => Number(find(".ps-root").dataset.at);
const blockOf = (id) => find(`.pl-block[data-block="${id}"]`);
const button = (op) => find(`[data-op="${op}"]`);

test("each step of a recording is drawn as it is told", () => {
  const recording = threeAnswers();
  const model = open(recording);
  const counts = new Array(recording.drawn).fill(0);
  recording.steps.forEach((step, i) => {
    model.change("step", i);
    for (const [id, count] of Object.entries(step.counts ?? {})) counts[id] = count;
    const drawn = all(".pl-block").map((node) => Number(node.dataset.count));
    assert.deepEqual(drawn, counts, `step ${i}`);
    assert.equal(shownStep(), i);
  });
  assert.ok(find(".pl-prompt").textContent.endsWith("."));
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

test("the number of a block is beside its last word, before a gap", () => {
  const texts = { r0: sequenceOf(["Hello ", "you"], [0, 1]) };
  open({ ...recordingOf({ used: 2, counts: { 0: 1, 1: 1 }, texts }), block_size: 1 });
  assert.equal(find(".ps-words").textContent.trim().slice(0, 7), "Hello0 ");
});

test("the slider and the buttons go to a step", () => {
  open(threeAnswers());
  type(find(".pl-scrubber"), "7");
  assert.equal(shownStep(), 7);
  button("on").click();
  assert.equal(shownStep(), 8);
  button("back").click();
  button("back").click();
  assert.equal(shownStep(), 6);
  assert.equal(find(".pl-step").textContent, `Step 6 of ${threeAnswers().steps.length - 1}`);
});

test("the space bar plays and pauses", () => {
  open(threeAnswers());
  find(".pl-scrubber").focus();
  assert.equal(press(" "), false, "the page does not scroll");
  assert.match(button("play").textContent, /Pause/);
  press(" ");
  assert.match(button("play").textContent, /Play/);
});

test("it plays to the end and can be played again", async (context) => {
  const recording = recordingOf({}, {}, {}, {});
  open(recording, -1);
  for (const step of [1, 2, 3]) {
    context.mock.timers.tick(125);
    assert.equal(shownStep(), step);
  }
  context.mock.timers.tick(10_000);
  assert.equal(shownStep(), 3);
  assert.match(button("play").textContent, /Again/);
  button("play").click();
  assert.equal(shownStep(), 0);
});

test("a caption of the page stays until the next one, and long enough to be read", (context) => {
  const captions = { 0: "Nothing is here.", 2: "Something is here." };
  open(recordingOf({}, {}, {}, {}), -1, { speed: 4, captions });
  assert.equal(find(".ps-rate [selected]").value, "4");
  context.mock.timers.tick(1499);
  assert.equal(shownStep(), 0);
  context.mock.timers.tick(1);
  assert.equal(shownStep(), 1);
  assert.equal(find(".pl-prompt").textContent, "Nothing is here.");
  context.mock.timers.tick(250);
  assert.equal(shownStep(), 2);
  assert.equal(find(".pl-prompt").textContent, "Something is here.");
  context.mock.timers.tick(1500);
  assert.equal(shownStep(), 3);
  assert.equal(find(".pl-prompt").textContent, "Something is here.");
});

test("spaces at the end of a prompt are no chip with a number", () => {
  const words = ["a", "b", "c", "d", "", "\n"];
  const texts = { r0: sequenceOf(words, [6, 7], { prompt: 6, tokens: 6 }) };
  open(recordingOf({ used: 2, counts: { 6: 1, 7: 1 }, texts }));
  assert.equal(all(".ps-run").length, 1);
  assert.equal(find(".ps-words").textContent.trimEnd(), "abcd6");
});

/** Opens a recording that plays, and returns what says that its squares are seen. */
function openBelowTheScreen(context) {
  let tell;
  const watched = [];
  const observer = class {
    constructor(callback) {
      tell = (isIntersecting) => callback([{ isIntersecting }]);
    }
    observe(node) {
      watched.push(node);
    }
    disconnect() {}
  };
  globalThis.IntersectionObserver = observer;
  context.after(() => {
    delete globalThis.IntersectionObserver;
  });
  open(threeAnswers(), -1);
  assert.deepEqual(watched, [find(".pl-blocks")]);
  return tell;
}

test("a recording below the screen waits until its squares are seen", (context) => {
  const tell = openBelowTheScreen(context);
  tell(false);
  context.mock.timers.tick(5000);
  assert.equal(shownStep(), 0);
  assert.match(button("play").textContent, /Play/);
  tell(true);
  context.mock.timers.tick(125);
  assert.equal(shownStep(), 1);
});

test("a reader who moved a recording before it was seen is not moved on", (context) => {
  const tell = openBelowTheScreen(context);
  button("on").click();
  tell(true);
  context.mock.timers.tick(5000);
  assert.equal(shownStep(), 1);
});

test("a page that follows an engine does not fall back for ever", (context) => {
  const steps = Array.from({ length: 1001 }, () => ({}));
  const model = open(recordingOf({}), -1, { live: true, lag: 1 });
  model.change("recorded", recordingOf(...steps));
  for (let i = 0; i < 250; i += 1) context.mock.timers.tick(20);
  assert.ok(shownStep() > 900, String(shownStep()));
});

test("a reader who wants no motion follows an engine, too", (context) => {
  context.mock.method(globalThis, "matchMedia", () => ({ matches: true }));
  const model = open(recordingOf({}), -1, { live: true, lag: 1 });
  model.change("recorded", recordingOf({}, {}, {}));
  for (let i = 0; i < 100; i += 1) context.mock.timers.tick(20);
  assert.equal(shownStep(), 2);
});

test("of a large pool the rows in use are drawn, and they are large", () => {
  const recorded = {
    ...recordingOf({ counts: { 3: 1, 700: 1, 701: 1 } }, {}),
    num_blocks: 26214,
    drawn: 1024,
  };
  open(recorded, 0);
  const drawn = all(".pl-block").map((node) => Number(node.dataset.block));
  assert.equal(drawn.length, 64);
  assert.ok(drawn.includes(3) && drawn.includes(700) && drawn.includes(701));
  assert.equal(find(".pl-many"), null);
  assert.match(find(".ps-more").textContent, /Showing\s+64 of 26,214 blocks/);
});

const runs = (name, state, look) => ({ [name]: sequenceOf(WORDS, [look], { look, state }) });

/** Four requests, of which two ended and one waits. */
const mixed = () => {
  const texts = { ...runs("r0", "stop", 0), ...runs("r1", "waiting", 1) };
  return recordingOf({
    texts: { ...texts, ...runs("r2", "length", 2), ...runs("r3", "running", 3) },
  });
};

test("where a page asks for it, requests that ended are last, the newest first, and short", () => {
  open(mixed(), 0, { ended_last: true });
  const names = all(".ps-text").map((text) => text.dataset.text);
  assert.deepEqual(names, ["r3", "r1", "r2", "r0"]);
  const short = all(".ps-short").map((text) => text.dataset.text);
  assert.deepEqual(short, ["r2", "r0"]);
  assert.equal(find(".ps-texts").style.getPropertyValue("--rows"), "9", "room for two long ones");
});

test("elsewhere each request keeps its place and its lines", () => {
  open(mixed());
  const names = all(".ps-text:not(.ps-short)").map((text) => text.dataset.text);
  assert.deepEqual(names, ["r0", "r1", "r2", "r3"]);
});

test("only a text that scrolls is a Tab stop", () => {
  const model = open(threeAnswers(), 20);
  assert.deepEqual(all(".ps-texts[tabindex], .ps-words[tabindex]"), []);
  for (const words of all(".ps-words")) {
    Object.defineProperty(words, "scrollHeight", { value: 90, configurable: true });
  }
  model.change("step", 21);
  const stops = all(".ps-words");
  assert.ok(stops.length > 0);
  assert.ok(stops.every((words) => words.tabIndex === 0));
});

test("another recording is shown, even at the step that is shown already", () => {
  const first = recordingOf({ used: 1, counts: { 0: 1 } }, {});
  const second = recordingOf({ used: 2, counts: { 3: 1, 4: 1 } }, {});
  const model = open(first, 1);
  model.change("recorded", second);
  assert.deepEqual(
    all(".pl-used").map((node) => node.dataset.block),
    ["3", "4"],
  );
});

test("a word, its block and the table's cell light up together", () => {
  open(recordingOf({ counts: { 2: 1, 5: 1 }, texts: { r0: sequenceOf(WORDS, [2, 5]) } }));
  blockOf(2).focus();
  const lit = all(".pl-lit").map((node) => [node.tagName, node.dataset.block]);
  assert.deepEqual(new Set(lit.map(([, block]) => block)), new Set(["2"]));
  assert.ok(lit.some(([tag]) => tag === "SPAN"));
  assert.equal(find(".pl-detail").textContent, "Block 2: r0, tokens 0–3: “The cat sat on”");
});

test("words that were released point at their block no more", () => {
  const r0 = sequenceOf(WORDS, [2, 5], { prompt: 0 });
  const released = { counts: { 2: 0, 5: 0 }, texts: { r0: { blocks: [0, []], tokens: 0 } } };
  const model = open(recordingOf({ counts: { 2: 1, 5: 1 }, texts: { r0 } }, released));
  assert.equal(all(".ps-run[data-block]").length, 2);
  model.change("step", 1);
  assert.equal(all(".ps-run[data-block]").length, 0);
});

test("the focus stays on a block while steps are shown", () => {
  const model = open(threeAnswers());
  const block = blockOf(1);
  block.focus();
  for (const step of [5, 20, 3]) {
    model.change("step", step);
    assert.equal(document.activeElement, block);
    assert.equal(blockOf(1), block);
  }
});

test("nothing goes on after the stage is removed", (context) => {
  const model = open(threeAnswers(), -1);
  remove();
  context.mock.timers.tick(10_000);
  assert.equal(shownStep(), 0);
  assert.equal(model.listeners.size, 0);
});

test("a recording without steps does not count them", () => {
  open(recordingOf({}), 0);
  assert.equal(find(".pl-step").textContent, "One step");
  remove();
  open(recordingOf({}), -1, { live: true });
  assert.equal(all(".pl-step").at(-1).textContent, "No step yet");
});

test("counters at zero are hidden, and the free blocks include the cached ones", () => {
  const shown = () => all(".pl-stat span").map((node) => node.textContent);
  open(threeAnswers());
  assert.deepEqual(shown(), ["used", "free"]);
  remove();
  host.replaceChildren();
  open(recordingOf({ kept: { 0: 1, 1: 1 }, cached: 2 }));
  assert.deepEqual(shown(), ["used", "free", "of them cached"]);
});

test("what the chat template wrote is a chip", () => {
  const words = ["", "user", "\n", "Why", "?", "", "\n", "", "assistant", "\n", "So"];
  const texts = { r0: sequenceOf(words, [0, 1, 2], { prompt: 10 }) };
  open(recordingOf({ counts: { 0: 1, 1: 1, 2: 1 }, texts }));
  assert.deepEqual(
    all(".ps-role").map((node) => [node.textContent, node.dataset.block]),
    [
      ["user", "0"],
      ["assistant", "2"],
    ],
  );
  assert.equal(find(".ps-words").textContent.replace(/[012]/g, ""), "userWhy?assistantSo");
});

test("a film begins at the step that its model names, and plays again from there", () => {
  const recorded = threeAnswers();
  open(recorded, -1, { first: 1 });
  assert.equal(shownStep(), 1);
  const last = recorded.steps.length - 1;
  type(find(".pl-scrubber"), String(last));
  button("play").click();
  assert.equal(shownStep(), 1);
});
