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

/** A button for each letter. */
function fill(names) {
  root.innerHTML = [...names].map((name) => `<button id="${name}"></button>`).join("");
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

test("arrow keys, Home and End move from part to part, three of which are a row", () => {
  roving(root, "button", () => 3);
  fill("abcdefgh");
  const path = [
    ["c", "ArrowRight", "d"],
    ["b", "ArrowLeft", "a"],
    ["b", "ArrowDown", "e"],
    ["g", "ArrowUp", "d"],
    ["g", "ArrowDown", "g"],
    ["c", "Home", "a"],
    ["f", "End", "h"],
  ];
  for (const [from, key, to] of path) {
    focus(from);
    assert.equal(press(key), from === to, "a key that moves does not scroll the page");
    assert.equal(document.activeElement.id, to, `${key} from ${from}`);
  }
});

test("there is one Tab stop: the first part, then the one that had the focus last", () => {
  const keepTabStop = roving(root, "button", () => 3);
  const stops = () => [...root.querySelectorAll('[tabindex="0"]')].map(({ id }) => id);
  fill("abcd");
  keepTabStop();
  assert.deepEqual(stops(), ["a"]);
  focus("c");
  keepTabStop();
  assert.deepEqual(stops(), ["c"]);
  document.getElementById("c").remove();
  keepTabStop();
  assert.deepEqual(stops(), ["a"]);
});
