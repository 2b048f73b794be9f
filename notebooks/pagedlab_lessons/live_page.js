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
   * @param {string} _events
   * @param {() => void} listener
   */
  on(_events, listener) {
    onRecorded = listener;
  },
  off() {},
};
let first = 0; // number of the first step that is here

/**
 * What the server answers, as JSON. An answer that tells of an error is one.
 *
 * @param {string} path
 * @param {RequestInit} [options]
 */
async function load(path, options) {
  const answer = await fetch(path, options);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  return body;
}

/** Fetches the new steps and shows them. */
async function update() {
  const since = first + (values.recorded?.steps.length ?? 0);
  const body = await load(`blocks?since=${since}`);
  const known = values.recorded;
  if (known && body.first === since) {
    if (!body.steps.length) return;
    values.recorded = { ...body, steps: [...known.steps, ...body.steps] };
  } else {
    first = body.first;
    values.recorded = body;
  }
  if (known) onRecorded();
  else stage.render({ model, el: find("stage") });
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
  find("trouble").textContent = trouble;
  setTimeout(look, document.hidden ? PAUSE_WHEN_HIDDEN : PAUSE);
}

/** @param {string} id */
function find(id) {
  return /** @type {HTMLInputElement} */ (document.getElementById(id));
}

const answers = find("answers");

/**
 * Asks the engine. The stage shows the words as they come; the page shows the answers at the end.
 *
 * @param {number} number of answers
 */
async function ask(number) {
  answers.textContent = "The answer grows below.";
  const messages = [{ role: "user", content: find("question").value }];
  const asked =
    number > 1 ? { messages, n: number, temperature: 0.8 } : { messages, temperature: 0 };
  try {
    const body = await load("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(asked),
    });
    const texts = body.choices.map((/** @type {any} */ choice) => choice.message.content.trim());
    answers.textContent = texts.join("\n\n");
  } catch (error) {
    answers.textContent = error instanceof TypeError ? "" : String(error); // `look` says the other
  }
}

find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const button = /** @type {HTMLButtonElement | null} */ (event.submitter);
  ask(Number(button?.value ?? 1));
});
look();
