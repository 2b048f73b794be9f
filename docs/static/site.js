// What scrolls can be reached with the keyboard. So can the theme's two drawers, which have names.
// Texts of results are marked for a narrow screen: sentences wrap there, and tables scroll.

const BOXES =
  "pre, .output, .cell_output, .table-wrapper, .math-wrapper, a.image-reference, .px-picture";
const PICTURES = "a.image-reference, .px-picture";
const TABLES = "pre.columns, .table-wrapper";
const HINT = "Swipe sideways: the picture is wider than the screen.";
const TABLE_HINT = "Swipe sideways: the table is wider than the screen.";
const TEXTS = ".cell_output pre";
const CODE = ".highlight-python *";
const GAP = /\S {2,}(?=\S)/g; // between two columns
const FEWEST_GAPS = 2; // in a row of a table; a name and a sentence have one
const FEWEST_ROWS = 2;

/** @param {string} line */
function countGaps(line) {
  return line.match(GAP)?.length ?? 0;
}

/**
 * Marks a text of a result as a table, or as words.
 *
 * @param {HTMLElement} pre
 */
function markText(pre) {
  const lines = (pre.textContent ?? "").split("\n");
  const rows = lines.filter((line) => countGaps(line) >= FEWEST_GAPS);
  pre.classList.add(rows.length >= FEWEST_ROWS ? "columns" : "words");
}

for (const pre of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(TEXTS))) {
  if (!pre.matches(CODE)) markText(pre);
}

/**
 * Fades the right edge of a box that has more to show there.
 *
 * @param {HTMLElement} box
 */
function fadeEdge(box) {
  const hidden = box.scrollWidth - box.clientWidth - box.scrollLeft;
  box.classList.toggle("has-more", hidden > 2);
}

/**
 * Says above a picture or a table that it scrolls, while it does.
 *
 * @param {HTMLElement} box
 * @param {boolean} scrolls
 */
function updateHint(box, scrolls) {
  const place = box.closest("[data-opening], .output.stream") ?? box;
  let hint = /** @type {HTMLElement | null} */ (place.previousElementSibling);
  if (!hint?.classList.contains("swipe-hint")) {
    if (!scrolls) return;
    hint = document.createElement("p");
    hint.className = "swipe-hint";
    hint.textContent = box.matches(TABLES) ? TABLE_HINT : HINT;
    place.before(hint);
  }
  hint.hidden = !scrolls;
}

/**
 * Lets a table break its words if they are too long for the screen, as with wide letters.
 *
 * @param {HTMLElement} table
 */
function breakWords(table) {
  table.classList.remove("breaks-words");
  table.classList.toggle("breaks-words", table.scrollWidth > table.clientWidth);
}

/**
 * Makes a box a Tab stop and shows where it goes on, while it scrolls.
 *
 * @param {HTMLElement} box
 */
function update(box) {
  if (box.matches(".table-wrapper")) breakWords(box);
  const isWider = box.scrollWidth > box.clientWidth;
  const isHigher = box.scrollHeight > box.clientHeight;
  if (isWider || isHigher) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
  if (box.matches(`${PICTURES}, ${TABLES}`)) updateHint(box, isWider);
  fadeEdge(box);
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) update(/** @type {HTMLElement} */ (target));
});

/** Follows every box of the page; a second call follows those that were added. */
function followBoxes() {
  /** @type {NodeListOf<HTMLElement>} */
  const boxes = document.querySelectorAll(BOXES);
  for (const box of boxes) {
    box.onscroll = () => fadeEdge(box);
    resized.observe(box);
  }
}

followBoxes();
addEventListener("load", followBoxes);
addEventListener("opened", followBoxes); // of openings.js

/**
 * Puts a button in the place of a label that opens a drawer. The theme's labels are without a
 * name, and the keyboard cannot reach them.
 *
 * @param {HTMLLabelElement} label
 * @param {string} name
 */
function makeButton(label, name) {
  const box = /** @type {HTMLInputElement | null} */ (label.control);
  if (!box) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = label.className;
  button.setAttribute("aria-label", name);
  button.append(...label.childNodes);
  const update = () => button.setAttribute("aria-expanded", String(box.checked));
  button.addEventListener("click", () => box.click());
  box.addEventListener("change", update);
  update();
  label.replaceWith(button);
}

/**
 * Names a drawer, and the icons that open it.
 *
 * @param {string} drawer
 * @param {string} icon
 * @param {string} name
 */
function nameDrawer(drawer, icon, name) {
  document.querySelector(drawer)?.setAttribute("aria-label", name);
  /** @type {NodeListOf<HTMLLabelElement>} */
  const labels = document.querySelectorAll(`label${icon}`);
  for (const label of labels) makeButton(label, name);
}

nameDrawer(".sidebar-drawer", ".nav-overlay-icon", "all pages");
nameDrawer(".toc-drawer", ".toc-overlay-icon", "on this page");
