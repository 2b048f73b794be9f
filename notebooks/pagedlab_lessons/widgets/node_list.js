// A box with a node for each item of a list.

import { Markup, show } from "./markup.js";

/**
 * What a node of the list is like: its attributes, and `inside`, if the list writes the inside.
 *
 * @typedef {Record<string, unknown> & {inside?: Markup}} NodeTemplate
 */

/**
 * @template T
 * @typedef {object} ListOptions
 * @property {string} [tag] name of the nodes; "div" if it is left out
 * @property {(item: T) => string} [signature] what an item's template depends on, where that is
 *   quicker to say than the template; a node whose signature is the same is left alone
 */

/** @type {WeakMap<Element, string>} */
const signatures = new WeakMap();
/** @type {WeakMap<Element, string>} The attributes that each node got, as JSON. */
const writtenAttributes = new WeakMap();

/**
 * Makes the children of `box` show the items. A node is written only where its template changed.
 *
 * @template T
 * @param {Element} box
 * @param {T[]} items
 * @param {(item: T) => NodeTemplate} template
 * @param {ListOptions<T>} [options]
 */
export function showList(box, items, template, { tag = "div", signature } = {}) {
  items.forEach((item, i) => {
    const node = box.children[i] ?? box.appendChild(document.createElement(tag));
    const sign = signature?.(item);
    if (sign !== undefined) {
      if (signatures.get(node) === sign) return;
      signatures.set(node, sign);
    }
    writeNode(node, template(item));
  });
  while (box.children.length > items.length) box.lastElementChild?.remove();
}

/**
 * Gives a node the attributes and the inside of its template.
 *
 * @param {Element} node
 * @param {NodeTemplate} template
 */
function writeNode(node, { inside, ...attributes }) {
  const written = writtenAttributes.get(node);
  const isNew = written === undefined;
  // Arrow keys move among the buttons of a grid: `roving` makes one of them the Tab stop.
  if (isNew && node.nodeName === "BUTTON") node.setAttribute("tabindex", "-1");
  const wanted = JSON.stringify(attributes);
  if (written !== wanted) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
    writtenAttributes.set(node, wanted);
  }
  if (inside) show(node, inside);
}
