// What scrolls can be reached with the keyboard, and the theme's two sidebars have names.

/**
 * Fades the right edge of a box that has more to show there.
 *
 * @param {HTMLElement} box
 */
function fadeEdge(box) {
  const hidden = box.scrollWidth - box.clientWidth - box.scrollLeft;
  box.classList.toggle("has-more", hidden > 2);
}

/** Makes each box that scrolls a Tab stop, and shows where it goes on. */
function updateTabStops() {
  /** @type {NodeListOf<HTMLElement>} */
  const boxes = document.querySelectorAll(
    "pre, .output, .cell_output, .table-wrapper, .math-wrapper",
  );
  for (const box of boxes) {
    const isWider = box.scrollWidth > box.clientWidth;
    const isHigher = box.scrollHeight > box.clientHeight;
    if (isWider || isHigher) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
    fadeEdge(box);
    box.onscroll = () => fadeEdge(box);
  }
}

updateTabStops();
addEventListener("resize", updateTabStops);
addEventListener("load", updateTabStops);

document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "all pages");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "on this page");
