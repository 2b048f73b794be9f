import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import grid from "../../notebooks/pagedlab_lessons/widgets/block_grid.js";
import { Model, openHost, press, type } from "./browser_page.js";

const ATTACK = `<img src=x onerror="window.attacked = true">`;
let host;
let model;
let remove;

/** The state after a sequence was forked: s0 and s1 share two blocks. */
function forked(change = {}) {
  const table = { tokens: 6, blocks: [0, 1] };
  return {
    serial: 1,
    block_size: 4,
    columns: 4,
    counts: [2, 2, 0, 0, 0, 0, 0, 0],
    tables: [
      { ...table, name: "s0", look: 0 },
      { ...table, name: "s1", look: 1 },
    ],
    copies: [],
    focus: "s1",
    figures: { used: 2, free: 6, shared: 2, copied: 0, "with copies": 4 },
    saved: "4 MiB",
    step: 2,
    steps: 2,
    log: [
      ["new s0", false],
      ["fork s0", false],
    ],
    next: { s1: "Append to it." },
    presets: ["Examples …", "beam search"],
    usual: 5,
    position: "Step 2 of 2",
    alert: "",
    spoken: "fork s0",
    challenge: null,
    ...change,
  };
}

beforeEach(() => {
  host = openHost();
  model = new Model({ state: forked() });
  remove = grid.render({ model, el: host });
});

afterEach(() => remove());

const find = (selector) => host.querySelector(selector);
const button = (op) => find(`[data-op="${op}"]`);
const blockOf = (id) => find(`.pl-block[data-block="${id}"]`);
const selected = () => find(".pl-selected")?.dataset.sequence;

test("buttons send what they do, and to which sequence", () => {
  type(find(".pl-amount"), "7");
  for (const op of ["new", "append", "write", "fork", "free", "undo", "reset"]) button(op).click();
  assert.equal(
    model.sent.map(({ op, sequence, n }) => `${op} ${sequence} ${n}`).join(),
    "new null 7,append s1 7,write s1 null,fork s1 null,free s1 null,undo s1 null,reset s1 null",
  );
});

test("a button that does nothing now keeps the focus and sends nothing", () => {
  const redo = button("redo");
  assert.equal(redo.getAttribute("aria-disabled"), "true");
  redo.focus();
  redo.click();
  assert.deepEqual([model.sent.length, document.activeElement], [0, redo]);
});

test("the slider and the examples go to a state", () => {
  type(find(".pl-scrubber"), "1");
  type(find(".pl-examples"), "beam search");
  assert.deepEqual(model.sent, [
    { op: "seek", step: 1 },
    { op: "preset", name: "beam search" },
  ]);
});

test("a row and the list select a sequence, a block its readers one after the other", () => {
  assert.equal(selected(), "s1");
  find('[data-sequence="s0"] .pl-name').click();
  assert.equal(selected(), "s0");
  type(find(".pl-sequence"), "s1");
  assert.equal(selected(), "s1");
  find('[data-sequence="s0"] .pl-cell').click();
  assert.equal(find(".pl-sequence").value, "s0");
  for (const name of ["s1", "s0"]) {
    blockOf(1).click();
    assert.equal(selected(), name);
  }
  blockOf(5).click();
  assert.equal(selected(), "s0", "a free block selects nothing");
});

test("a block that is pointed at is described, and lights up in the tables", () => {
  blockOf(1).focus();
  assert.equal(host.querySelectorAll(".pl-cell.pl-lit").length, 2);
  const said = find(".pl-detail").textContent;
  assert.ok(said.startsWith("Block 1: 2 references · s0’s logical block 1, tokens 4–5 · s1’s"));
  assert.ok(said.endsWith("token 5 is in slot 1 × 4 + 1 = 5"));
  press("End");
  assert.equal(find(".pl-detail").textContent, "Block 7: 0 references");
});

test("a new state is drawn, and the nodes and the focus stay in the widget", () => {
  const blocks = [...host.querySelectorAll(".pl-block")];
  blocks[2].focus();
  const counts = [2, 2, 1, 0, 0, 0, 0, 0];
  model.change("state", forked({ serial: 2, counts, figures: { used: 3 } }));
  assert.deepEqual([...host.querySelectorAll(".pl-block")], blocks);
  assert.equal(document.activeElement, blocks[2]);
  assert.equal(blocks[2].dataset.count, "1");
  assert.ok(blocks[2].classList.contains("pl-lost"), "no table lists it");
  assert.equal(find('[data-stat="used"]').textContent, "3");
});

test("a slider that moves is not pulled back by a late answer", () => {
  const scrubber = find(".pl-scrubber");
  scrubber.focus();
  type(scrubber, "1");
  model.change("state", forked({ step: 0 }));
  assert.equal(scrubber.value, "1");
  scrubber.blur();
  model.change("state", forked({ step: 0 }));
  assert.equal(scrubber.value, "0");
});

test("a screen reader hears names and what happened", () => {
  assert.equal(blockOf(1).getAttribute("aria-label"), "block 1, 2 references, s0, s1");
  assert.equal(find("[aria-live=polite]").textContent, "fork s0");
});

test("what Python says is text", () => {
  const words = { goal: ATTACK, why: ATTACK, hint: ATTACK, solution: ATTACK };
  const challenge = { ...words, missing: [ATTACK] };
  const log = [true, false].map((isUndone) => [ATTACK, isUndone]);
  const said = {
    next: { [ATTACK]: ATTACK },
    alert: ATTACK,
    spoken: ATTACK,
    position: ATTACK,
    log,
    challenge,
  };
  const table = {
    name: ATTACK,
    look: ATTACK,
    tokens: 3,
    blocks: [0, null],
    next: ATTACK,
  };
  model.change("state", forked({ ...said, tables: [table], focus: ATTACK }));
  assert.equal(host.querySelectorAll("img").length, 0);
  assert.equal(find(".pl-alert").textContent, ATTACK);
  assert.ok(find(".pl-goal").textContent.includes(ATTACK));
});
