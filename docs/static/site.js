// What scrolls can be reached with the keyboard, and the theme's two sidebars have names.

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

document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "all pages");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "on this page");
