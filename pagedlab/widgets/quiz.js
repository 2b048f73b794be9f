// The closing quiz: an answer unfolds and says why it is right or wrong, and the others fold. No kernel is needed.

function render({ model, el }) {
  const root = makeRoot("quiz");
  root.className = "pq-root";
  root.innerHTML = model.get("page");
  const boxes = [...root.children].map((box) => [...box.querySelectorAll("details")]);
  boxes.forEach((answers, q) => answers.forEach((answer, a) => answer.addEventListener("toggle", () => {
    const chosen = model.get("chosen");
    if (answer.open === (chosen[q] === a)) return;
    model.set("chosen", chosen.with(q, answer.open ? a : null));
    model.save_changes();
  })));
  const draw = () => boxes.forEach((answers, q) => answers.forEach((answer, a) => {
    answer.open = a === model.get("chosen")[q];
  }));

  model.on("change:chosen", draw);
  el.append(root);
  draw();
  return () => model.off("change:chosen", draw);
}

export default { render };
