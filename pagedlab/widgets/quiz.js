// The closing quiz: every answer is a button, and a click says why it is right or wrong. No kernel is needed.

function say(node, text) {
  text.split("`").forEach((part, i) => {
    const piece = document.createElement(i % 2 ? "code" : "span");
    piece.textContent = part;
    node.append(piece);
  });
  return node;
}

function element(tag, css, ...children) {
  const node = document.createElement(tag);
  node.className = css;
  node.append(...children);
  return node;
}

function render({ model, el }) {
  const root = element("div", "pq-root");
  const shown = model.get("questions").map((question, q) => {
    const why = element("p", "pq-why");
    why.setAttribute("role", "status");
    const buttons = question.answers.map((answer, a) => {
      const button = say(element("button", "pq-answer"), answer.text);
      button.type = "button";
      button.addEventListener("click", () => {
        model.set("chosen", model.get("chosen").map((old, i) => (i === q ? a : old)));
        model.save_changes();
      });
      return button;
    });
    const legend = say(element("legend", "pq-question"), `${q + 1}. ${question.text}`);
    root.append(element("fieldset", "pq-box", legend, ...buttons, why));
    return { question, buttons, why };
  });

  function draw() {
    model.get("chosen").forEach((a, q) => {
      const { question, buttons, why } = shown[q];
      buttons.forEach((button, i) => {
        const mark = i !== a ? "" : question.answers[i].right ? "right" : "wrong";
        if (button.dataset.mark === mark) return;
        button.dataset.mark = mark;
        button.setAttribute("aria-pressed", String(i === a));
        if (!mark) return;
        why.replaceChildren();
        say(why, `${mark === "right" ? "Right." : "Wrong."} ${question.answers[i].why}`);
      });
    });
  }

  // The notebook has shortcuts on single keys: b inserts a cell, d d deletes one.
  root.addEventListener("keydown", (event) => event.key !== "Tab" && event.stopPropagation());
  model.on("change:chosen", draw);
  el.append(root);
  draw();
  return () => model.off("change:chosen", draw);
}

export default { render };
