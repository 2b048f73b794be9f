import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { makeRoot, roving } from "../../notebooks/pagedlab_lessons/widgets/keyboard.js";
import { openHost, press } from "./browser_page.js";

let cell;
let keysOfCell;
let root;

beforeEach(() => {
  cell = openHost();
  cell.className = "jp-Cell";
  cell.tabIndex = -1;
  keysOfCell = [];
  cell.addEventListener("keydown", (event) => keysOfCell.push(event));
  root = makeRoot("blocks");
  cell.append(root);
});

/** Rows of buttons: "ab c" is a row with the buttons a and b, and a row with the button c. */
function fill(rows, role = "grid") {
  const lines = rows.split(" ").map((row) => {
    const buttons = [...row].map((name) => `<button id="${name}" tabindex="-1"></button>`);
    return `<div role="row">${buttons.join("")}</div>`;
  });
  root.innerHTML = `<div role="${role}">${lines.join("")}</div>`;
}

function focus(id) {
  document.getElementById(id).focus();
}

test("Escape, and Enter with another key, are the cell's", () => {
  fill("a");
  for (const modifier of ["", "shiftKey", "ctrlKey", "metaKey", "altKey"]) {
    const key = modifier ? "Enter" : "Escape";
    focus("a");
    keysOfCell.length = 0;
    assert.equal(press(key, { code: key, [modifier]: true }), false, "the button does not react");
    const [event] = keysOfCell;
    assert.deepEqual([event.key, event.code, event[modifier] ?? true], [key, key, true]);
  }
});

test("Escape outside a notebook is nobody's", () => {
  document.body.append(root);
  fill("a");
  focus("a");
  assert.equal(press("Escape"), true);
  assert.equal(document.activeElement.id, "a");
});

test("arrow keys, Home and End move inside a grid and stop at its edges", () => {
  roving(root);
  fill("abc de fgh");
  const path = [
    ["c", "ArrowRight", "c"],
    ["b", "ArrowLeft", "a"],
    ["c", "ArrowDown", "e"],
    ["g", "ArrowDown", "g"],
    ["h", "ArrowUp", "e"],
    ["c", "Home", "a"],
    ["f", "End", "h"],
  ];
  for (const [from, key, to] of path) {
    focus(from);
    assert.equal(press(key), false, "the page does not scroll");
    assert.equal(document.activeElement.id, to, `${key} from ${from}`);
  }
});

test("other keys, and keys of an input, are left alone", () => {
  roving(root);
  root.innerHTML = '<div role="toolbar"><button id="a"></button><input id="amount"></div>';
  focus("a");
  assert.equal(press("PageDown"), true);
  focus("amount");
  assert.equal(press("ArrowLeft"), true);
  assert.equal(document.activeElement.id, "amount");
});

test("a group has one Tab stop: its first button, then the one that had the focus last", () => {
  const keepTabStops = roving(root);
  const stops = () => [...root.querySelectorAll('[tabindex="0"]')].map(({ id }) => id);
  fill("ab cd");
  assert.deepEqual(stops(), []);
  keepTabStops();
  assert.deepEqual(stops(), ["a"]);
  focus("c");
  assert.deepEqual(stops(), ["c"]);
  document.getElementById("c").remove();
  keepTabStops();
  assert.deepEqual(stops(), ["a"]);
});
