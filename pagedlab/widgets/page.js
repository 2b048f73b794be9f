// What every widget's page has in common: templates, words, and the keyboard. It stands before the widget's own script.

const { format } = new Intl.NumberFormat("en");
const plural = (n, word) => `${format(n)} ${word}${n === 1 ? "" : "s"}`;
const percent = (part, whole) => `${(100 * part) / whole}%`;
const classes = (names) => Object.keys(names).filter((name) => names[name]).map((name) => `pl-${name}`).join(" ");

function inBytes(n) {
  const power = n && Math.floor(Math.log2(n) / 10), value = n / 1024 ** power;
  return `${Number.isInteger(value) ? value : value.toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

// What a template made. Markup is trusted because of its class: JSON can make an object with any fields, but none of
// this class.
class Markup {
  constructor(source) { this.source = source; }
}

// A template: lists are joined, templates go in as they are, and all else is text.
const html = (parts, ...values) => new Markup(String.raw({ raw: parts }, ...values.map(escape)));
function escape(value) {
  if (Array.isArray(value)) return value.map(escape).join("");
  if (value instanceof Markup) return value.source;
  return String(value).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

// A selector of the nodes whose data-NAME is this value, whatever characters it has.
const withData = (name, value) => `[data-${name}="${CSS.escape(value)}"]`;

// Makes the inside of `node` what a template says. What is alike is left alone, so focus, pointer and scroll stay.
// The inside of a `data-own` has templates of its own.
function show(node, template) {
  if (node.shown === template.source) return;
  node.shown = template.source;
  const wanted = node.cloneNode();
  wanted.innerHTML = template.source;
  adopt(node, wanted);
}

function adopt(node, wanted) {
  const children = [...wanted.childNodes];
  children.forEach((child, i) => {
    const there = node.childNodes[i];
    if (there?.nodeName !== child.nodeName) return there ? there.replaceWith(child) : node.append(child);
    if (there.nodeValue !== child.nodeValue) there.nodeValue = child.nodeValue;
    for (const { name, value } of child.attributes ?? []) {
      if (name !== "tabindex" && there.getAttribute(name) !== value) there.setAttribute(name, value);
    }
    if (there.hidden && !child.hidden) there.hidden = false;
    if (!child.dataset || !("own" in child.dataset)) adopt(there, child);
  });
  while (node.childNodes.length > children.length) node.lastChild.remove();
}

function makeRoot(label) {
  const root = document.createElement("div");
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", label);
  root.addEventListener("keydown", (event) => {
    if (event.key === "Tab") return;
    event.stopPropagation(); // single letters are commands of JupyterLab: "d d" on a button would delete the cell
    const runs = event.key === "Enter" && (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey);
    const cell = root.closest(".jp-Cell");
    if (!cell || !(runs || event.key === "Escape")) return;
    event.preventDefault(); // what runs or leaves a cell is the cell's, wherever in it the keyboard is
    cell.focus();
    const { key, code, keyCode, shiftKey, ctrlKey, metaKey, altKey } = event;
    const again = { key, code, keyCode, shiftKey, ctrlKey, metaKey, altKey, bubbles: true, cancelable: true };
    cell.dispatchEvent(new KeyboardEvent("keydown", again));
  });
  return root;
}

// One Tab stop for each toolbar or grid of buttons; arrow keys, Home and End move inside it, from row to row.
// What is returned sees to it that there is one.
function roving(root) {
  const GROUP = '[role="toolbar"], [role="grid"]', LINE = '[role="toolbar"], [role="row"]';
  const buttons = (line) => [...(line?.querySelectorAll("button") ?? [])];
  root.addEventListener("focusin", ({ target }) => {
    if (!target.matches(`:is(${GROUP}) [tabindex]`)) return;
    for (const other of target.closest(GROUP).querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    target.tabIndex = 0;
  });
  root.addEventListener("keydown", (event) => {
    const line = event.target.closest(LINE), column = buttons(line).indexOf(event.target);
    if (column < 0) return;
    const lines = [...line.parentNode.children].filter((one) => one.matches(LINE)), row = lines.indexOf(line);
    const to = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column], Home: [row, 0], End: [row, Infinity],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const there = buttons(lines[to[0]]);
    there[Math.min(to[1], there.length - 1)]?.focus();
  });
  return () => root.querySelectorAll(GROUP).forEach((group) => {
    if (!group.querySelector('[tabindex="0"]')) buttons(group)[0]?.setAttribute("tabindex", 0);
  });
}

// A copy, from edge to edge of two blocks in one canvas, over the top within a row, so that numbers and badges stay
// readable.
function arrow(a, b) {
  if (!a || !b || a === b) return "";
  const [x0, x1] = [a, b].map((node) => node.offsetLeft + node.offsetWidth / 2), down = b.offsetTop - a.offsetTop;
  const y0 = a.offsetTop + (down > 0 ? a.offsetHeight : 0), y1 = b.offsetTop + (down < 0 ? b.offsetHeight : 0);
  const mx = (x0 + x1) / 2, my = down ? (y0 + y1) / 2 : y0 - 16 - Math.abs(x1 - x0) / 8;
  const d = `M${x0} ${y0} Q${mx} ${my} ${x1} ${y1}`, angle = (Math.atan2(y1 - my, x1 - mx) * 180) / Math.PI;
  return html`<path d="${d}" class="pl-halo"/><path d="${d}" class="pl-arrow" pathLength="1"/>
    <path d="M-9 -6 L3 0 L-9 6 Z" transform="translate(${x1} ${y1}) rotate(${angle})" class="pl-head"/>`;
}
