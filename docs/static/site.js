// What scrolls can be reached with the keyboard.

/** Makes each box that scrolls a Tab stop. */
function updateTabStops() {
  /** @type {NodeListOf<HTMLElement>} */
  const boxes = document.querySelectorAll("pre, .output, .table-wrapper");
  for (const box of boxes) {
    const isWider = box.scrollWidth > box.clientWidth;
    const isHigher = box.scrollHeight > box.clientHeight;
    if (isWider || isHigher) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

updateTabStops();
addEventListener("resize", updateTabStops);
addEventListener("load", updateTabStops);
