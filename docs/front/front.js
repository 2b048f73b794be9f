// Reads out the film's captions while it plays. When the film is paused, the stage reads each step.
// Shows what needs scripts, and gives frames their addresses: without scripts a browser would load them at once.

const film = /** @type {HTMLElement} */ (document.getElementById("film"));
const heard = /** @type {HTMLElement} */ (document.getElementById("heard"));

function readOut() {
  const caption = film.querySelector(".pl-playing .pl-prompt")?.textContent ?? "";
  if (heard.textContent !== caption) heard.textContent = caption;
}

new MutationObserver(readOut).observe(film, {
  childList: true,
  characterData: true,
  subtree: true,
});

document.getElementById("try")?.removeAttribute("hidden");
for (const frame of document.querySelectorAll("iframe")) frame.src = frame.dataset.src ?? "";
