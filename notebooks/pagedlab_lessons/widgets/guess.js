// A question with an input box. What is below the box is Python's.

import { makeRoot } from "./keyboard.js";
import { find, html } from "./markup.js";

/**
 * @typedef {object} GuessModel
 * @property {(name: string) => any} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, listener: () => void) => void} on
 * @property {(event: string, listener: () => void) => void} off
 */

/**
 * @param {{model: GuessModel, el: HTMLElement}} context
 * @returns {() => void} what removes the view
 */
function render({ model, el }) {
  const root = makeRoot("a guess", "pg-root");
  const reveals = model.get("reveals");
  root.innerHTML = html`<label><span><b>Guess:</b> ${model.get("question")}</span>
    <input type="number" step="any" class="pl-button pl-amount" placeholder="then Enter"> ${model.get("unit")}</label>
    <button class="pl-button">show me</button>
    <div aria-live="polite"></div>`.source;
  const input = find(root, "input");
  const answer = find(root, "div");
  const button = find(root, "button");

  /**
   * @param {string} name
   * @param {unknown} value
   */
  function tell(name, value) {
    model.set(name, value);
    model.save_changes();
  }

  function draw() {
    input.value = model.get("typed");
    answer.innerHTML = model.get("page");
    // the other outputs of this cell would give the answer away, see guess.css
    const isTold = answer.querySelector("meter") !== null;
    root.classList.toggle("pg-waiting", reveals && !isTold);
    button.hidden = isTold || !reveals;
  }

  input.addEventListener("change", () => tell("typed", input.value)); // after Enter, or on leaving
  button.addEventListener("click", () => tell("shown", true));
  el.append(root);
  draw();
  model.on("change:typed change:page", draw);
  return () => model.off("change:typed change:page", draw);
}

export default { render };
