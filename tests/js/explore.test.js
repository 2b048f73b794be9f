import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import explore from "../../notebooks/pagedlab_lessons/widgets/explore.js";
import { flip, Model, openHost, press, type } from "./browser_page.js";

const SIZES = Array.from({ length: 12 }, (_, i) => `${i} blocks`);
const CONTROLS = [
  { name: "size", kind: "slider", options: SIZES },
  { name: "text", kind: "text", options: [] },
  { name: "forget_to_copy", kind: "switch", options: [] },
];
const DRAWING = `<svg><g>
  <text data-link="a b" data-say="the first" data-set="size=3 blocks">1</text>
  <text data-link="b" data-say="the second" data-set="forget_to_copy=true">2</text>
  <text data-link="c" data-set="text=x=y">3</text></g></svg>
  <p><input id="drawn"><button data-play="size">not a control</button></p>`;

let host;
let model;
let remove;

beforeEach((context) => {
  context.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  host = openHost();
  model = new Model({
    caption: "Point at a part.",
    controls: CONTROLS,
    asked: { number: 0, at: { size: 5, text: "abc", forget_to_copy: false } },
    drawn: { number: 0, html: DRAWING },
  });
  remove = explore.render({ model, el: host });
});

afterEach(() => remove());

const find = (selector) => host.querySelector(selector);
const control = (name) => find(`[data-name="${name}"]`);
const asked = () => model.saved.map(({ asked: { at } }) => at);
const parts = () => [...host.querySelectorAll("text")];

/** Python draws what was asked. */
function answer(drawing = DRAWING) {
  model.change("drawn", { number: model.get("asked").number, html: drawing });
}

test("controls show the values and ask for others", () => {
  assert.equal(find("output").value, "5 blocks");
  assert.equal(find("label.px-switch span").textContent, "forget to copy");
  const slider = control("size");
  assert.deepEqual([slider.max, slider.value], ["11", "5"]);
  type(slider, "7");
  answer();
  flip(control("forget_to_copy"));
  answer();
  assert.deepEqual(asked(), [
    { size: 7, text: "abc", forget_to_copy: false },
    { size: 7, text: "abc", forget_to_copy: true },
  ]);
  assert.equal(find("output").value, "7 blocks");
});

test("one question is open at a time, and the latest wins", () => {
  for (const value of ["6", "7", "8", "9"]) type(control("size"), value);
  const sizes = () => asked().map(({ size }) => size);
  assert.deepEqual(sizes(), [6]);
  answer();
  assert.deepEqual(sizes(), [6, 9]);
});

test("what is typed is asked when the reader pauses", (context) => {
  for (const value of ["abcd", "abcde"]) type(control("text"), value);
  assert.deepEqual(asked(), []);
  context.mock.timers.tick(120);
  assert.deepEqual(
    asked().map(({ text }) => text),
    ["abcde"],
  );
});

test("inputs and buttons inside the drawing are its own, and it keeps its Tab stop", (context) => {
  type(find("#drawn"), "12");
  find(".px-picture button").click();
  find("#drawn").focus();
  for (const key of ["ArrowRight", "ArrowLeft", "Enter"]) assert.equal(press(key), true, key);
  context.mock.timers.tick(1000);
  assert.equal(document.activeElement.id, "drawn");
  assert.deepEqual(asked(), []);
  assert.deepEqual(
    parts().map((part) => part.getAttribute("tabindex")),
    ["0", "-1", "-1"],
  );
});

test("it says that Python computes, from 150 ms on, until the drawing is there", (context) => {
  type(control("size"), "7");
  context.mock.timers.tick(149);
  assert.equal(find(".px-busy").textContent, "");
  context.mock.timers.tick(1);
  assert.equal(find(".px-busy").textContent, "computing …");
  answer();
  assert.equal(find(".px-busy").textContent, "");
  type(control("size"), "8");
  answer();
  context.mock.timers.tick(1000);
  assert.equal(find(".px-busy").textContent, "");
  type(control("size"), "9");
  remove();
  context.mock.timers.tick(1000);
  assert.equal(find(".px-busy").textContent, "", "nothing happens after the view is removed");
});

test("parts that share a link light up, and the part is named", () => {
  const [first, second, third] = parts();
  first.focus();
  assert.deepEqual(
    parts().map((part) => part.classList.contains("pl-lit")),
    [true, true, false],
  );
  assert.equal(find(".px-say").textContent, "the first");
  second.blur();
  third.focus();
  assert.equal(find(".px-say").textContent, "Point at (or tap) a part.");
});

test("arrow keys move from part to part, and Enter sets a control", () => {
  parts()[0].focus();
  for (const [key, place] of [
    ["ArrowRight", 1],
    ["ArrowDown", 2],
    ["ArrowRight", 2],
    ["ArrowLeft", 1],
    ["ArrowUp", 0],
  ]) {
    press(key);
    assert.equal(document.activeElement, parts()[place], key);
  }
  for (const place of [0, 1, 2]) {
    parts()[place].focus();
    press("Enter");
    answer();
  }
  assert.deepEqual(asked().at(-1), { size: 3, text: "x=y", forget_to_copy: true });
  assert.equal(document.activeElement, parts()[2], "the focus is on the same part of the drawing");
});

test("a click sets a number above 999 and a switch, as Python writes their values", () => {
  const controls = [
    { name: "step", kind: "slider", options: [999, 1000, "a, b"] },
    { name: "on", kind: "switch", options: [] },
  ];
  const part = (setting) => `<text data-set="${setting}">1</text>`;
  const drawn = ["step=1000", "step=a, b", "step=1", "on=True"].map(part);
  const drawing = `<svg>${drawn.join("")}</svg>`;
  remove();
  host.replaceChildren();
  model = new Model({
    caption: "",
    controls,
    asked: { number: 0, at: { step: 0, on: false } },
    drawn: { number: 0, html: drawing },
  });
  remove = explore.render({ model, el: host });
  const words = [];
  for (const place of [0, 1, 2, 3]) {
    parts()[place].dispatchEvent(new Event("click", { bubbles: true }));
    answer(drawing);
    words.push(find("output").value);
  }
  assert.deepEqual(asked(), [
    { step: 1, on: false },
    { step: 2, on: false },
    { step: 2, on: true },
  ]);
  assert.deepEqual(words, ["1,000", "a, b", "a, b", "a, b"]);
});

test("a slider plays from its first option, pauses, and goes on to the last", (context) => {
  const play = find('.px-controls [data-play="size"]');
  const size = () => asked().at(-1)?.size;
  /** @param {number} times */
  const tick = (times) => {
    for (let i = 0; i < times; i += 1) {
      answer();
      context.mock.timers.tick(600);
    }
  };
  play.click();
  assert.equal(size(), 0);
  context.mock.timers.tick(5000);
  assert.equal(size(), 0, "it waits for the drawing");
  tick(2);
  assert.equal(size(), 2);
  play.click();
  tick(3);
  assert.equal(size(), 2);
  assert.equal(play.textContent, "▶");
  play.click();
  assert.equal(play.textContent, "❚❚");
  assert.equal(play.getAttribute("aria-label"), "pause");
  tick(20);
  assert.equal(size(), 11);
  assert.equal(play.textContent, "▶");
  assert.equal(play.getAttribute("aria-label"), "play");
});

test("values that Python sets are shown, an older question is not", () => {
  model.change("asked", { number: 3, at: { size: 1, text: "new", forget_to_copy: true } });
  assert.equal(find("output").value, "1 blocks");
  assert.equal(control("text").value, "new");
  model.change("asked", { number: 2, at: { size: 9, text: "old", forget_to_copy: true } });
  assert.equal(find("output").value, "1 blocks");
});

test("what was typed is not lost when a slider moves at once", () => {
  type(control("text"), "abcd");
  type(control("size"), "7");
  answer();
  assert.deepEqual(asked().at(-1), { size: 7, text: "abcd", forget_to_copy: false });
  assert.equal(control("text").value, "abcd");
});

test("the line below has room for the longest that may be said", () => {
  assert.equal(find(".px-longest").textContent, "Point at (or tap) a part.");
  type(control("size"), "7");
  answer('<svg><text data-say="something that is much longer">1</text></svg>');
  assert.equal(find(".px-longest").textContent, "something that is much longer");
});

test("letters of a drawing that scrolls can be read, and it stays as wide", () => {
  const svg = (size) => `<svg viewBox="-2 0 904 90"><text font-size="${size}">u0</text></svg>`;
  const readable = () => find(".px-picture").style.getPropertyValue("--readable");
  for (const [number, size] of [10, 20].entries()) {
    model.change("drawn", { number: number + 1, html: svg(size) });
    assert.equal(readable(), "995px");
  }
  assert.equal(find(".px-headline").textContent, "");
});

test("a drawing's patterns have names of its own", () => {
  answer(
    '<svg><defs><pattern id="look-1p-E69F00"/></defs><rect fill="url(#look-1p-E69F00)"/></svg>',
  );
  const name = find("pattern").id;
  assert.match(name, /^look-\w+-1p-E69F00$/);
  assert.equal(find("rect").getAttribute("fill"), `url(#${name})`);
});
