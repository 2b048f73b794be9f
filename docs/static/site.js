// What scrolls can be reached with the keyboard.
const reach = () => {
  for (const box of document.querySelectorAll("pre, .output, .table-wrapper")) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
reach();
addEventListener("resize", reach);
addEventListener("load", reach);
