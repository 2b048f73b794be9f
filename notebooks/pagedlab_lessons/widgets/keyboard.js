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
    const isOwn = event.shiftKey && isOwnEnter(event);
    if (cell && isForCell(event) && !isOwn) handToCell(event, cell);
  });
  return root;
}

/**
 * Whether a key runs the cell (Enter with another key) or leaves it (Escape).
 *
 * @param {KeyboardEvent} event
 * @returns {boolean}
 */
function isForCell({ key, shiftKey, ctrlKey, metaKey, altKey }) {
  if (key === "Escape") return true;
  return key === "Enter" && (shiftKey || ctrlKey || metaKey || altKey);
}

/**
 * Whether a key is Enter, alone or with Shift, in a field that has a use for it.
 *
 * @param {KeyboardEvent} event
 * @returns {boolean}
 */
export function isOwnEnter({ key, ctrlKey, metaKey, altKey, target }) {
  const hasOthers = ctrlKey || metaKey || altKey;
  return key === "Enter" && !hasOthers && /** @type {Element} */ (target).matches(OWN_ENTER);
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

const OWN_ENTER = "[data-own-enter]";
const GROUP = '[role="toolbar"], [role="grid"]';
const LINE = '[role="toolbar"], [role="row"]';

/**
 * The buttons of a line, which is a toolbar or a row of a grid.
 *
 * @param {Element | undefined} line
 * @returns {HTMLElement[]}
 */
function buttonsOf(line) {
  return line ? [...line.querySelectorAll("button")] : [];
}

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
      buttonsOf(group)[0]?.setAttribute("tabindex", "0");
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
  const line = from.closest(LINE);
  if (!line?.parentElement) return null;
  const buttons = buttonsOf(line);
  const column = buttons.indexOf(/** @type {HTMLElement} */ (from));
  if (column < 0) return null;
  const lines = [...line.parentElement.children].filter((sibling) => sibling.matches(LINE));
  const row = lines.indexOf(line);
  /** @type {Record<string, HTMLElement | undefined>} */
  const targets = {
    ArrowLeft: buttons[column - 1],
    ArrowRight: buttons[column + 1] ?? buttons.at(-1),
    ArrowUp: inColumn(lines[row - 1], column),
    ArrowDown: inColumn(lines[row + 1], column),
    Home: buttons[0],
    End: buttons.at(-1),
  };
  return key in targets ? { to: targets[key] } : null;
}

/**
 * The button of a line in this column, or the last one of a shorter line.
 *
 * @param {Element | undefined} line
 * @param {number} column
 * @returns {HTMLElement | undefined}
 */
function inColumn(line, column) {
  const buttons = buttonsOf(line);
  return buttons[Math.min(column, buttons.length - 1)];
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
