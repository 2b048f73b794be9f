// The live page. The stage asks a model for `recorded` and `live`. Here the model is this
// page, which fetches what happened since the last time, four times a second. Above the stage is a
// question to ask.

import stage from "./stage.js";

/** @import { Recording } from "./replay.js" */

const PAUSE = 250; // milliseconds between two fetches
const PAUSE_WHEN_HIDDEN = 2000;
const UNREACHABLE = "The server does not answer.";

let onRecorded = () => {}; // the stage's, once it is there
/** @type {{live: boolean, lag: number, recorded: Recording | null}} */
const values = { live: true, lag: 0.5, recorded: null };
const model = {
  /** @param {string} name */
  get: (name) => /** @type {Record<string, unknown>} */ (values)[name],
  /**
   * @param {string} event
   * @param {() => void} listener
   */
  on(event, listener) {
    if (event === "change:recorded") onRecorded = listener;
  },
  off() {},
};
let first = 0; // number of the first step that is here

/** Fetches the new steps and shows them. */
async function update() {
  const since = first + (values.recorded?.steps.length ?? 0);
  const answer = await fetch(`blocks?since=${since}`);
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
  if (known) onRecorded();
  else stage.render({ model, el: /** @type {HTMLElement} */ (document.getElementById("stage")) });
}

/** Updates the page, says what went wrong, and comes again. */
async function look() {
  let trouble = "";
  try {
    await update();
  } catch (error) {
    const isUnreachable = error instanceof TypeError;
    trouble = isUnreachable ? UNREACHABLE : String(/** @type {Error} */ (error).message);
  }
  troubleLine.textContent = trouble;
  setTimeout(look, document.hidden ? PAUSE_WHEN_HIDDEN : PAUSE);
}

const asking = /** @type {HTMLFormElement} */ (document.getElementById("ask"));
const question = /** @type {HTMLInputElement} */ (document.getElementById("question"));
const answers = /** @type {HTMLElement} */ (document.getElementById("answers"));
const troubleLine = /** @type {HTMLElement} */ (document.getElementById("trouble"));

/**
 * Asks the engine. The stage shows the words as they come; the page shows the answers at the end.
 *
 * @param {number} number of answers
 */
async function ask(number) {
  answers.textContent = "The answer grows below.";
  const messages = [{ role: "user", content: question.value }];
  const asked = number > 1 ? { messages, n: number, temperature: 0.8 } : { messages };
  try {
    const answer = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(asked),
    });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error.message);
    const texts = body.choices.map((/** @type {any} */ choice) => choice.message.content.trim());
    answers.textContent = texts.join("\n\n");
  } catch (error) {
    answers.textContent = error instanceof TypeError ? "" : String(error); // `look` says the other
  }
}

asking.addEventListener("submit", (event) => {
  event.preventDefault();
  const button = /** @type {HTMLButtonElement | null} */ (event.submitter);
  ask(Number(button?.value ?? 1));
});
look();
