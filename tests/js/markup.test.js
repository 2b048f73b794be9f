import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { html, show, sourceOf } from "../../notebooks/pagedlab_lessons/widgets/markup.js";
import { openHost } from "./browser_page.js";

const ATTACK = `<img src=x onerror="alert('a')">&`;
let box;

beforeEach(() => {
  box = openHost();
});

test("a word that looks like markup is text", () => {
  show(box, html`<p title="${ATTACK}">${ATTACK}</p>`);
  assert.equal(box.querySelectorAll("img").length, 0);
  assert.equal(box.firstChild.textContent, ATTACK);
  assert.equal(box.firstChild.getAttribute("title"), ATTACK);
});

test("an object from JSON is never markup, whatever fields it has", () => {
  for (const field of ["html", "source", "raw", "markup", "innerHTML"]) {
    const value = JSON.parse(JSON.stringify({ [field]: "<img>" }));
    assert.ok(!sourceOf(value).includes("<"), field);
    assert.ok(!sourceOf([[value]]).includes("<"), field);
  }
});

test("an update keeps nodes that are alike, the focus and the Tab stop", () => {
  const page = (count) => html`<p>${count}</p><button tabindex="-1">a</button>`;
  show(box, page(1));
  const [line, button] = box.children;
  button.tabIndex = 0;
  button.focus();
  show(box, page(2));
  assert.deepEqual([...box.children], [line, button]);
  assert.equal(line.textContent, "2");
  assert.equal(document.activeElement, button);
  assert.equal(button.tabIndex, 0);
});

test("an update adds, replaces and removes nodes and attributes", () => {
  const item = (word) => html`<li>${word}</li>`;
  show(box, html`<ol hidden data-block="3">${item("a")}</ol>`);
  const first = box.querySelector("li");
  for (const words of [["b", "c"], ["b"]]) {
    show(box, html`<ol>${words.map(item)}</ol>`);
    assert.equal(box.innerHTML, `<ol><li>${words.join("</li><li>")}</li></ol>`);
    assert.equal(box.querySelector("li"), first);
  }
  show(box, html`<ul>${item("b")}</ul>`);
  assert.equal(box.innerHTML, "<ul><li>b</li></ul>");
});

test("what the reader unfolded stays open", () => {
  const page = (words) => html`<details><summary>Hint</summary>${words}</details>`;
  show(box, page("a"));
  box.firstChild.setAttribute("open", "");
  show(box, page("b"));
  assert.ok(box.firstChild.hasAttribute("open"));
});

test("the inside of a data-own node is left alone", () => {
  const page = (columns) => html`<div data-own style="--columns: ${columns}"></div>`;
  show(box, page(8));
  show(box.firstChild, html`<b>own</b>`);
  show(box, page(16));
  assert.equal(box.firstChild.getAttribute("style"), "--columns: 16");
  assert.equal(box.firstChild.innerHTML, "<b>own</b>");
});
