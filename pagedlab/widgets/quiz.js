// The closing quiz: every answer is a button, and a click says why it is right or wrong. No kernel is needed.
// Questions, answers and reasons come as HTML.

const PAGE = ({ text, answers }) => `
  <fieldset class="pq-box">
    <legend class="pq-question">${text}</legend>
    ${answers.map((answer) => `<button type="button" class="pq-answer">${answer.text}</button>`).join("")}
    <p class="pq-why" role="status"></p>
  </fieldset>`;

function render({ model, el }) {
  const questions = model.get("questions");
  const root = document.createElement("div");
  root.className = "pq-root";
  root.innerHTML = questions.map(PAGE).join("");
  const boxes = [...root.children].map((box) => [...box.querySelectorAll("button")]);

  function draw() {
    model.get("chosen").forEach((chosen, q) => {
      boxes[q].forEach((button, a) => {
        const { right, why } = questions[q].answers[a], mark = a !== chosen ? "" : right ? "right" : "wrong";
        if (button.dataset.mark === mark) return;
        button.dataset.mark = mark;
        button.setAttribute("aria-pressed", a === chosen);
        if (mark) root.children[q].lastElementChild.innerHTML = why;
      });
    });
  }

  boxes.forEach((buttons, q) => buttons.forEach((button, a) => button.addEventListener("click", () => {
    model.set("chosen", model.get("chosen").with(q, a));
    model.save_changes();
  })));
  // The notebook has shortcuts on single keys: b inserts a cell, d d deletes one.
  root.addEventListener("keydown", (event) => event.key !== "Tab" && event.stopPropagation());
  model.on("change:chosen", draw);
  el.append(root);
  draw();
  return () => model.off("change:chosen", draw);
}

export default { render };
