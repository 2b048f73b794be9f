// The root node of a widget, and the keyboard and the pointer inside it.

/**
 * The root node of a widget, whose keys do not reach the notebook.
 *
 * In JupyterLab single letters are commands: "d d" on a button would delete the cell. Keys that
 * run a cell or leave it are handed to the cell. But Shift+Enter is a field's own where the cell,
 * run again, would lose what the reader did: such a field has `data-own-enter`.
 *
 * @param {string} label what a screen reader says of the widget
 * @param {string} [kind] its class
 * @returns {HTMLElement}
 */
export function makeRoot(label, kind = "") {
  const root = document.createElement("div");
  root.className = `pl-root ${kind}`;
  root.role = "group";
  root.ariaLabel = label;
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
  cell.dispatchEvent(new KeyboardEvent("keydown", event));
}

/**
 * Gives the parts of a widget one Tab stop: the part that had the focus last, at first the first.
 * Arrow keys, Home and End move the focus from part to part.
 *
 * @param {HTMLElement} root
 * @param {string} selector of the parts
 * @param {() => number} columns parts in a row, which the keys up and down go on or back
 * @returns {() => void} call it after parts were added or removed
 */
export function roving(root, selector, columns) {
  const parts = () => /** @type {HTMLElement[]} */ ([...root.querySelectorAll(selector)]);
  const setTabStop = (/** @type {Element | null | undefined} */ stop) => {
    for (const part of parts()) part.setAttribute("tabindex", part === stop ? "0" : "-1");
  };
  root.addEventListener("focusin", ({ target }) => {
    const part = /** @type {Element} */ (target).closest(selector);
    if (part) setTabStop(part);
  });
  root.addEventListener("keydown", (event) => {
    const all = parts();
    const at = all.indexOf(/** @type {any} */ (event.target));
    /** @type {Record<string, number>} */
    const places = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at + columns(),
      ArrowUp: at - columns(),
      Home: 0,
      End: all.length - 1,
    };
    const next = at < 0 ? undefined : all[places[event.key]];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  return () => setTabStop(root.querySelector(`:is(${selector})[tabindex="0"]`) ?? parts()[0]);
}

/**
 * Tells which part is under the pointer or has the focus; null if none is.
 *
 * @param {HTMLElement} root
 * @param {string} selector of the parts
 * @param {(part: HTMLElement | null) => void} tell
 */
export function pointing(root, selector, tell) {
  for (const event of ["pointerover", "focusin"]) {
    root.addEventListener(event, ({ target }) => {
      tell(/** @type {Element} */ (target).closest(selector));
    });
  }
  root.addEventListener("pointerleave", ({ pointerType }) => {
    if (pointerType !== "touch") tell(null); // what a finger touched stays lit
  });
  root.addEventListener("focusout", () => tell(null));
}
