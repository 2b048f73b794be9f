import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import explore from "../../notebooks/pagedlab_lessons/widgets/explore.js";
import { flip, Model, openHost, press, type } from "./browser_page.js";

const SIZES = [...Array.from({ length: 11 }, (_, i) => `${i} blocks`), 1000];
const CONTROLS = [
  { name: "size", kind: "slider", options: SIZES },
  { name: "text", kind: "text", options: [] },
  { name: "forget_to_copy", kind: "switch", options: [] },
];
const DRAWING = `<svg><g>
  <text data-link="a b" data-say="the first" data-set="size=1000">1</text>
  <text data-link="b" data-say="the second" data-set="size=3 blocks">2</text>
  <text data-link="c" data-set="size=2 blocks">3</text></g></svg>
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
const all = (selector) => [...host.querySelectorAll(selector)];
const parts = () => all("text");

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

test("what Python repeats of a question is not another one", () => {
  type(control("size"), "7");
  model.change("asked", structuredClone(model.get("asked")));
  answer();
  assert.equal(asked().length, 1);
});

test("what is typed is not lost when a slider moves", () => {
  for (const value of ["abcd", "abcde"]) type(control("text"), value);
  type(control("size"), "7");
  answer();
  assert.deepEqual(asked().at(-1), { size: 7, text: "abcde", forget_to_copy: false });
  assert.equal(control("text").value, "abcde");
});

test("inputs and buttons inside the drawing are its own, and it keeps its Tab stop", (context) => {
  type(find("#drawn"), "12");
  find(".px-picture button").click();
  find("#drawn").focus();
  for (const key of ["ArrowRight", "ArrowLeft", "Enter"]) assert.equal(press(key), true, key);
  context.mock.timers.tick(1000);
  assert.equal(document.activeElement.id, "drawn");
  assert.deepEqual(asked(), []);
  assert.equal(
    parts()
      .map((part) => part.tabIndex)
      .join(),
    "0,-1,-1",
  );
});

test("the drawing is pale until Python has drawn", () => {
  const isWaiting = () => find(".px-picture").classList.contains("px-waiting");
  type(control("size"), "7");
  assert.ok(isWaiting());
  answer();
  assert.ok(!isWaiting());
});

test("parts that share a link light up, and the part is named", () => {
  const [first, , third] = parts();
  first.focus();
  assert.deepEqual(all("text.pl-lit"), parts().slice(0, 2));
  assert.equal(find(".px-say").textContent, "the first");
  third.focus();
  assert.equal(find(".px-say").textContent, "Point at a part.");
});

test("an arrow key moves to the next part; Enter and a click move a slider", () => {
  parts()[0].focus();
  press("ArrowRight");
  assert.equal(document.activeElement, parts()[1]);
  for (const place of [0, 1, 2]) {
    parts()[place].focus();
    if (place === 2) press("Enter");
    else parts()[place].dispatchEvent(new Event("click", { bubbles: true }));
    answer();
  }
  assert.deepEqual(
    asked().map(({ size }) => size),
    [11, 3, 2],
  );
  assert.equal(document.activeElement, parts()[2], "the focus is on the same part of the drawing");
});

test("a slider plays, pauses, goes on to the last option, and begins again", (context) => {
  const play = find('.px-controls [data-play="size"]');
  /** @param {number} times */
  const sizeAfter = (times) => {
    for (let i = 0; i < times; i += 1) {
      answer();
      context.mock.timers.tick(600);
    }
    return asked().at(-1).size;
  };
  play.click();
  context.mock.timers.tick(5000);
  const first = sizeAfter(0);
  context.mock.timers.tick(5000);
  assert.equal(sizeAfter(0), first, "it waits for the drawing");
  assert.equal(sizeAfter(2), first + 1);
  play.click();
  assert.equal(sizeAfter(3), first + 1);
  play.click();
  assert.equal(play.ariaPressed, "true");
  assert.equal(sizeAfter(20), 11);
  assert.equal(play.ariaPressed, "false");
  play.click();
  assert.equal(sizeAfter(0), 0, "once more");
});

test("values that Python sets are shown, an older question is not", () => {
  model.change("asked", { number: 3, at: { size: 1, text: "new", forget_to_copy: true } });
  assert.equal(find("output").value, "1 blocks");
  assert.equal(control("text").value, "new");
  model.change("asked", { number: 2, at: { size: 9, text: "old", forget_to_copy: true } });
  assert.equal(find("output").value, "1 blocks");
});

test("a drawing's patterns have names of its own", () => {
  answer(
    '<svg><defs><pattern id="look-1p-E69F00"/></defs><rect fill="url(#look-1p-E69F00)"/></svg>',
  );
  const name = find("pattern").id;
  assert.match(name, /^look-\w+-1p-E69F00$/);
  assert.equal(find("rect").getAttribute("fill"), `url(#${name})`);
});
