// The openings of a notebook's page: stored pictures become widgets that play without a kernel.

import explore from "./explore.js";
import { FrameModel } from "./frames.js";
import stage from "./stage.js";

const BEFORE_IT_IS_SEEN = "800px"; // how near an opening is when it is loaded

/**
 * The values of an opening, see notebooks/pagedlab_lessons/widgets/opening.py.
 *
 * @param {string} packed
 * @returns {Promise<any>}
 */
export async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

/**
 * A model whose values never change, for the stage.
 *
 * @param {Record<string, any>} values
 */
function fixedModel(values) {
  return {
    /** @param {string} name */
    get: (name) => values[name],
    on() {},
    off() {},
  };
}

/**
 * Loads an opening and puts it in the place of its picture.
 *
 * @param {HTMLElement} place
 */
async function open(place) {
  const answer = await fetch(place.dataset.opening ?? "");
  const { script, packed } = await answer.json();
  const values = await unpack(packed);
  if (script === "stage") stage.render({ model: fixedModel(values), el: place });
  else explore.render({ model: new FrameModel(values), el: place });
  const picture = place.closest(".output")?.previousElementSibling;
  const hint = picture?.previousElementSibling;
  if (hint?.matches(".swipe-hint")) hint.remove();
  picture?.remove();
  place.dispatchEvent(new Event("opened", { bubbles: true }));
}

/** Loads each opening when the reader comes near. */
function start() {
  const places = /** @type {NodeListOf<HTMLElement>} */ (
    document.querySelectorAll("[data-opening]")
  );
  const near = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        open(/** @type {HTMLElement} */ (target)).catch(console.error);
      }
    },
    { rootMargin: BEFORE_IT_IS_SEEN },
  );
  for (const place of places) near.observe(place);
}

start();
