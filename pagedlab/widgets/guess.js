// A question with an input box; what stands below it is Python's. page.js stands before this.

function render({ model, el }) {
  const root = makeRoot("a guess"), say = (key, value) => { model.set(key, value); model.save_changes(); };
  root.className = "pl-root pg-root";
  root.innerHTML = escape(html`<label><span><b>Guess:</b> ${model.get("question")}</span>
    <input type="text" class="pl-amount" placeholder="then Enter"> ${model.get("unit")}</label>
    ${model.get("reveals") ? html`<button class="pl-button">show me</button>` : ""}<div aria-live="polite"></div>`);
  const [input, button, page] = ["input", "button", "div"].map((css) => root.querySelector(css));
  const draw = () => {
    input.value = model.get("typed");
    page.innerHTML = model.get("page");
    if (button) button.hidden = page.innerHTML !== "";
  };
  input.addEventListener("change", () => say("typed", input.value)); // after Enter, and when it is left
  button?.addEventListener("click", () => say("shown", true));
  el.append(root);
  draw();
  model.on("change:typed change:page", draw);
  return () => model.off("change:typed change:page", draw);
}

export default { render };
