// What scrolls can be reached with the keyboard. So can the theme's two drawers, which have names.

const BOXES =
  "pre, .output, .cell_output, .table-wrapper, .math-wrapper, a.image-reference, .px-picture";
const PICTURES = "a.image-reference, .px-picture";
const HINT = "Swipe sideways: the picture is wider than the screen.";

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
 * Says above a picture that it scrolls, while it does.
 *
 * @param {HTMLElement} picture
 * @param {boolean} scrolls
 */
function updateHint(picture, scrolls) {
  const place = picture.closest("[data-opening]") ?? picture;
  let hint = /** @type {HTMLElement | null} */ (place.previousElementSibling);
  if (!hint?.classList.contains("swipe-hint")) {
    if (!scrolls) return;
    hint = document.createElement("p");
    hint.className = "swipe-hint";
    hint.textContent = HINT;
    place.before(hint);
  }
  hint.hidden = !scrolls;
}

/**
 * Makes a box a Tab stop and shows where it goes on, while it scrolls.
 *
 * @param {HTMLElement} box
 */
function update(box) {
  const isWider = box.scrollWidth > box.clientWidth;
  const isHigher = box.scrollHeight > box.clientHeight;
  if (isWider || isHigher) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
  if (box.matches(PICTURES)) updateHint(box, isWider);
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
