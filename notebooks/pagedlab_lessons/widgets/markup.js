// Templates of HTML, numbers and words in them, and the update of a page from a template.

/**
 * HTML that a template made.
 *
 * It is trusted because of its class. JSON can make an object with any fields, but never an object
 * of this class.
 */
export class Markup {
  /** @param {string} source */
  constructor(source) {
    this.source = source;
  }
}

/**
 * The HTML source of a value: a template is inserted as it is, a list is joined, and every other
 * value becomes text.
 *
 * @param {unknown} value
 * @returns {string}
 */
export function sourceOf(value) {
  if (Array.isArray(value)) return value.map(sourceOf).join("");
  if (value instanceof Markup) return value.source;
  // the last two are the quotes
  return String(value).replace(/[&<>\x22\x27]/g, (character) => `&#${character.charCodeAt(0)};`);
}

/**
 * The tag of a template: html`<b>${name}</b>`.
 *
 * @param {TemplateStringsArray} parts
 * @param {...unknown} values
 * @returns {Markup}
 */
export function html(parts, ...values) {
  return new Markup(String.raw({ raw: parts }, ...values.map(sourceOf)));
}

/** A number with its thousands apart: 1,024. To make the formatter takes longer than to use it. */
export const { format } = new Intl.NumberFormat("en");

/**
 * A number and what it counts: "1 block", "1,024 blocks".
 *
 * @param {number} n
 * @param {string} noun
 * @returns {string}
 */
export function plural(n, noun) {
  return `${format(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/**
 * The class attribute of the names whose value is true: { used: true } gives "pl-used".
 *
 * @param {Record<string, unknown>} names
 * @returns {string}
 */
export function classes(names) {
  const chosen = Object.keys(names).filter((name) => names[name]);
  return chosen.map((name) => `pl-${name}`).join(" ");
}

/**
 * A selector of the nodes whose data-NAME has this value, whatever characters the value has.
 *
 * @param {string} name
 * @param {string | number} value
 * @returns {string}
 */
export function withData(name, value) {
  return `[data-${name}="${CSS.escape(String(value))}"]`;
}

/**
 * The first node of a selector inside `root`, where there is one: an input, or any other element.
 *
 * @param {ParentNode} root
 * @param {string} selector
 * @returns {HTMLInputElement}
 */
export function find(root, selector) {
  return /** @type {HTMLInputElement} */ (root.querySelector(selector));
}

/** @type {WeakMap<Element, string>} The source that each node shows. */
const shownSources = new WeakMap();

/**
 * Makes the inside of `node` what a template says. Nodes that are alike stay, so focus, pointer
 * and scroll position stay too. The inside of a node with `data-own` is left alone.
 *
 * @param {Element} node
 * @param {Markup} template
 */
export function show(node, { source }) {
  if (shownSources.get(node) === source) return;
  shownSources.set(node, source);
  const wanted = /** @type {Element} */ (node.cloneNode());
  wanted.innerHTML = source;
  adoptChildren(node, wanted);
}

/**
 * Makes the children of `node` like those of `wanted`.
 *
 * @param {Node} node
 * @param {Node} wanted
 */
function adoptChildren(node, wanted) {
  const children = [...wanted.childNodes];
  children.forEach((child, i) => {
    const present = node.childNodes[i];
    if (!present) node.appendChild(child);
    else if (present.nodeName !== child.nodeName) present.replaceWith(child);
    else adoptNode(present, child);
  });
  while (node.childNodes.length > children.length) node.lastChild?.remove();
}

/**
 * Makes a node like another of the same kind.
 *
 * @param {Node} present
 * @param {Node} wanted
 */
function adoptNode(present, wanted) {
  if (present.isEqualNode(wanted)) return; // most are, and a browser finds out fast
  present.nodeValue = wanted.nodeValue;
  if (!(wanted instanceof Element)) return;
  adoptAttributes(/** @type {Element} */ (present), wanted);
  if (!wanted.hasAttribute("data-own")) adoptChildren(present, wanted);
}

/** Attributes that the reader changes: the Tab stop, and whether a <details> is open. */
const READERS_ATTRIBUTES = ["tabindex", "open"];

/**
 * Gives an element the attributes of another.
 *
 * @param {Element} present
 * @param {Element} wanted
 */
function adoptAttributes(present, wanted) {
  for (const name of [...present.getAttributeNames(), ...wanted.getAttributeNames()]) {
    if (READERS_ATTRIBUTES.includes(name)) continue;
    const value = wanted.getAttribute(name);
    if (value === null) present.removeAttribute(name);
    else if (present.getAttribute(name) !== value) present.setAttribute(name, value);
  }
}
