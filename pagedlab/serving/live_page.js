// The live page. The stage asks a model for `recorded`, `step` and `live`. Here the model is this
// page, which fetches what happened since the last time, four times a second.

import stage from "./stage.js";

/** @import { Recording } from "./replay.js" */

const PAUSE = 250; // milliseconds between two fetches
const PAUSE_WHEN_HIDDEN = 2000;

// A server with API keys: open the page as .../#KEY
const key = decodeURIComponent(location.hash.slice(1));
/** @type {Record<string, string>} */
const headers = key ? { Authorization: `Bearer ${key}` } : {};
/** @type {Record<string, () => void>} */
const listeners = {};
/** @type {{step: number, live: boolean, lag: number, recorded: Recording | null}} */
const values = { step: -1, live: true, lag: 1, recorded: null };
const model = {
  /** @param {string} name */
  get: (name) => /** @type {Record<string, unknown>} */ (values)[name],
  /**
   * @param {string} event
   * @param {() => void} listener
   */
  on(event, listener) {
    listeners[event] = listener;
  },
  off() {},
};
let first = 0; // number of the first step that is here

/** Fetches the new steps and shows them. */
async function update() {
  const since = first + (values.recorded?.steps.length ?? 0);
  const answer = await fetch(`blocks?since=${since}`, { headers });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  const known = values.recorded;
  if (known && body.first === since) {
    if (!body.steps.length) return;
    values.recorded = { ...body, steps: [...known.steps, ...body.steps] };
  } else {
    first = body.first;
    values.recorded = body;
  }
  if (listeners["change:recorded"]) listeners["change:recorded"]();
  else stage.render({ model, el: /** @type {HTMLElement} */ (document.getElementById("stage")) });
}

/** Updates the page, says what went wrong, and comes again. */
async function look() {
  let trouble = "";
  try {
    await update();
  } catch (error) {
    const isUnreachable = error instanceof TypeError;
    trouble = isUnreachable
      ? "The server does not answer."
      : String(/** @type {Error} */ (error).message);
  }
  const line = document.getElementById("trouble");
  if (line) line.textContent = trouble;
  setTimeout(look, document.hidden ? PAUSE_WHEN_HIDDEN : PAUSE);
}

look();
