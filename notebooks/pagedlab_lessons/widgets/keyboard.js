// The root node of a widget, and the keyboard inside it.

/**
 * The root node of a widget, whose keys do not reach the notebook.
 *
 * In JupyterLab single letters are commands: "d d" on a button would delete the cell. Keys that
 * run a cell or leave it are handed to the cell. But Shift+Enter is a field's own where the cell,
 * run again, would lose what the reader did: such a field has `data-own-enter`.
 *
 * @param {string} label what a screen reader says of the widget
 * @returns {HTMLElement}
 */
export function makeRoot(label) {
  const root = document.createElement("div");
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", label);
  root.addEventListener("keydown", (event) => {
    if (event.key === "Tab") return;
    event.stopPropagation();
    const cell = /** @type {HTMLElement | null} */ (root.closest(".jp-Cell"));
    if (cell && isForCell(event)) handToCell(event, cell);
  });
  return root;
}

/**
 * Whether a key runs the cell (Enter with another key) or leaves it (Escape).
 *
 * @param {KeyboardEvent} event
 * @returns {boolean}
 */
function isForCell({ key, shiftKey, ctrlKey, metaKey, altKey, target }) {
  const isOwn = /** @type {Element} */ (target).matches("[data-own-enter]");
  const runs = ctrlKey || metaKey || altKey || (shiftKey && !isOwn);
  return key === "Escape" || (key === "Enter" && runs);
}

/**
 * Gives the focus to the cell and presses the same key there.
 *
 * @param {KeyboardEvent} event
 * @param {HTMLElement} cell
 */
function handToCell(event, cell) {
  event.preventDefault();
  cell.focus();
  const { key, code, keyCode, shiftKey, ctrlKey, metaKey, altKey } = event;
  const same = { key, code, keyCode, shiftKey, ctrlKey, metaKey, altKey };
  cell.dispatchEvent(new KeyboardEvent("keydown", { ...same, bubbles: true, cancelable: true }));
}

const GROUP = '[role="toolbar"], [role="grid"]';
const LINE = '[role="toolbar"], [role="row"]';

/**
 * One Tab stop for each toolbar or grid of buttons. Arrow keys, Home and End move the focus inside.
 *
 * @param {HTMLElement} root
 * @returns {() => void} call it after buttons were added or removed: it gives a group its Tab stop
 */
export function roving(root) {
  root.addEventListener("focusin", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.matches(`:is(${GROUP}) [tabindex]`)) moveTabStop(target);
  });
  root.addEventListener("keydown", (event) => {
    const move = moveFrom(/** @type {Element} */ (event.target), event.key);
    if (!move) return;
    event.preventDefault();
    move.to?.focus();
  });
  return () => {
    for (const group of root.querySelectorAll(GROUP)) {
      if (group.querySelector('[tabindex="0"]')) continue;
      group.querySelector("button")?.setAttribute("tabindex", "0");
    }
  };
}

/**
 * Makes a node the only Tab stop of its group.
 *
 * @param {HTMLElement} target
 */
function moveTabStop(target) {
  for (const other of target.closest(GROUP)?.querySelectorAll('[tabindex="0"]') ?? []) {
    /** @type {HTMLElement} */ (other).tabIndex = -1;
  }
  target.tabIndex = 0;
}

/**
 * The button that a key leads to.
 *
 * @param {Element} from
 * @param {string} key
 * @returns {{to: HTMLElement | undefined} | null} null: this key moves nothing here; `to` is
 *   undefined at an edge
 */
function moveFrom(from, key) {
  const group = from.closest(GROUP);
  const lines = group
    ? [group, ...group.querySelectorAll(LINE)].filter((line) => line.matches(LINE))
    : [];
  const rows = lines.map((line) => [...line.querySelectorAll("button")]);
  const at = rows.findIndex((row) => row.includes(/** @type {any} */ (from)));
  if (at < 0) return null;
  const row = rows[at];
  const column = row.indexOf(/** @type {any} */ (from));
  const [above, below] = [rows[at - 1], rows[at + 1]];
  /** @type {Record<string, HTMLElement | undefined>} */
  const targets = {
    ArrowLeft: row[column - 1],
    ArrowRight: row[column + 1],
    ArrowUp: above?.[column] ?? above?.at(-1),
    ArrowDown: below?.[column] ?? below?.at(-1),
    Home: row[0],
    End: row.at(-1),
  };
  return key in targets ? { to: targets[key] } : null;
}

/**
 * Makes each node that scrolls a Tab stop, and no other: its keys scroll it.
 *
 * @param {Iterable<HTMLElement>} nodes
 */
export function setScrollStops(nodes) {
  const scrolling = [...nodes].map((node) => ({ node, scrolls: isScrolling(node) }));
  for (const { node, scrolls } of scrolling) {
    if (scrolls) node.tabIndex = 0;
    else node.removeAttribute("tabindex");
  }
}

/**
 * Whether a node has more inside than it shows.
 *
 * @param {HTMLElement} node
 */
function isScrolling({ scrollWidth, clientWidth, scrollHeight, clientHeight }) {
  return scrollWidth > clientWidth || scrollHeight > clientHeight;
}
