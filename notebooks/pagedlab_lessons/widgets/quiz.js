// The closing quiz: an answer unfolds and says why it is right or wrong, and the other answers
// fold. No kernel is needed.

import { makeRoot } from "./keyboard.js";

/**
 * What the quiz asks of its model: `page` is its HTML, `chosen` the number of the open answer of
 * each question, or null.
 *
 * @typedef {object} QuizModel
 * @property {(name: string) => any} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, listener: () => void) => void} on
 * @property {(event: string, listener: () => void) => void} off
 */

/**
 * @param {{model: QuizModel, el: HTMLElement}} context
 * @returns {() => void} what removes the view
 */
function render({ model, el }) {
  const root = makeRoot("quiz");
  root.className = "pq-root";
  root.innerHTML = model.get("page");
  const questions = [...root.children].map((box) => [...box.querySelectorAll("details")]);

  /**
   * Tells the model that the reader opened or closed an answer.
   *
   * @param {number} question
   * @param {number} answer
   */
  function onToggle(question, answer) {
    const { open } = questions[question][answer];
    const chosen = [...model.get("chosen")];
    const wasOpen = chosen[question] === answer;
    if (open === wasOpen) return;
    chosen[question] = open ? answer : null;
    model.set("chosen", chosen);
    model.save_changes();
  }

  /** Opens the chosen answer of each question, and closes the others. */
  function draw() {
    const chosen = model.get("chosen");
    questions.forEach((answers, question) => {
      answers.forEach((details, answer) => {
        details.open = chosen[question] === answer;
      });
    });
  }

  questions.forEach((answers, question) => {
    answers.forEach((details, answer) => {
      details.addEventListener("toggle", () => onToggle(question, answer));
    });
  });
  model.on("change:chosen", draw);
  el.append(root);
  draw();
  return () => model.off("change:chosen", draw);
}

export default { render };
