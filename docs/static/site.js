// What scrolls can be reached with the keyboard. So can the theme's two drawers, which have names.
// Texts of results are marked for a narrow screen: sentences wrap there, and tables scroll.

const BOXES =
  "pre, .output, .cell_output, .table-wrapper, .math-wrapper, a.image-reference, .px-picture";
const PICTURES = "a.image-reference, .px-picture";
const TABLES = "pre.columns, .table-wrapper";
const HINT = "Swipe sideways: the picture is wider than the screen.";
const TABLE_HINT = "Swipe sideways: the table is wider than the screen.";
const TEXTS = ".cell_output pre:not(.highlight-python *)";
const ROW = /^.*\S {2,}\S.* {2,}\S.*$/gm; // of a table: three columns; a name and a sentence are two
const FEWEST_ROWS = 2;

for (const pre of document.querySelectorAll(TEXTS)) {
  const rows = (pre.textContent ?? "").match(ROW) ?? [];
  pre.classList.add(rows.length >= FEWEST_ROWS ? "columns" : "words");
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
 * Makes a box a Tab stop while it scrolls.
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
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) update(/** @type {HTMLElement} */ (target));
});

/** Follows every box of the page; a second call follows those that were added. */
function followBoxes() {
  for (const box of document.querySelectorAll(BOXES)) resized.observe(box);
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
