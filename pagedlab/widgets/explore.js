// Controls above a drawing that Python makes. One question is under way at a time, and the latest wins. page.js stands
// before this.

function render({ model, el }) {
  const root = makeRoot("a drawing with controls"), caption = model.get("caption");
  let { number, at } = model.get("asked"), controls = model.get("controls"), waiting = false, wanted = null, timer = 0, playing = 0, stopped = null, pointed = null;

  root.className = "pl-root px-root";
  root.innerHTML = escape(html`<div class="px-controls">${controls.map(({ name, kind, options }) => html`
    <label class="px-${kind}"><span>${name.replaceAll("_", " ")}</span>
      ${kind === "text" ? html`<input type="text" data-name="${name}" spellcheck="false">`
        : kind === "switch" ? html`<input type="checkbox" role="switch" data-name="${name}">`
        : html`<input type="range" class="pl-scrubber" data-name="${name}"><output></output>`}
    </label>${kind === "slider" ? html`<button class="pl-button" data-play="${name}" aria-label="play">▶</button>` : ""}`)}
    <span class="px-busy" role="status"></span></div><div class="px-picture"></div>
    <p class="px-say" aria-live="polite">${caption}</p>`);
  const [picture, say, busy] = [".px-picture", ".px-say", ".px-busy"].map((css) => root.querySelector(css));
  const parts = () => [...picture.querySelectorAll("[data-link], [data-say], [data-set]")];

  // ---- controls
  function place() {
    for (const { name, kind, options } of controls) {
      const input = root.querySelector(withData("name", name));
      if (kind === "slider") {
        input.max = options.length - 1;
        input.nextElementSibling.value = options[at[name]];
        input.setAttribute("aria-valuetext", options[at[name]]);
        root.querySelector(withData("play", name)).hidden = options.length < 10;
      }
      if (kind === "switch") input.checked = at[name];
      else if (input.value !== String(at[name])) input.value = at[name];
    }
  }
  function ask(name, value) {
    wanted = { ...at, ...wanted, [name]: value };
    at = wanted;
    place();
    if (!waiting) send();
  }
  function send() {
    number += 1;
    waiting = true;
    setTimeout((asked) => { if (waiting && asked === number) busy.textContent = "computing …"; }, 150, number);
    model.set("asked", { number, at: wanted });
    wanted = null;
    model.save_changes();
  }
  function play(name) { // from the first to the end, or on from where it was stopped; never before the last is there
    clearInterval(playing);
    const last = controls.find((control) => control.name === name)?.options.length - 1;
    const button = root.querySelector(withData("play", name)), goes = button?.textContent === "❚❚";
    const was = stopped;
    root.querySelectorAll("[data-play]").forEach((other) => { other.textContent = "▶"; });
    stopped = goes ? name : null;
    if (!button || goes) return;
    button.textContent = "❚❚";
    if (was !== name || at[name] === last) ask(name, 0);
    playing = setInterval(() => {
      if (!root.isConnected || at[name] >= last) play();
      else if (!waiting) ask(name, at[name] + 1);
    }, Math.max(150, Math.min(600, 9000 / last)));
  }
  root.addEventListener("input", ({ target }) => {
    const { name } = target.dataset, { type } = target;
    play();
    clearTimeout(timer);
    if (type === "text") timer = setTimeout(() => ask(name, target.value), 120);
    else ask(name, type === "checkbox" ? target.checked : Number(target.value));
  });

  // ---- the drawing
  function light(part) {
    pointed = part?.dataset.link ?? null;
    const words = pointed?.split(" ") ?? [];
    root.classList.toggle("pl-pointing", Boolean(pointed));
    for (const other of picture.querySelectorAll("[data-link]")) {
      other.classList.toggle("pl-lit", other.dataset.link.split(" ").some((word) => words.includes(word)));
    }
    const said = part?.closest("[data-say]")?.dataset.say ?? caption;
    if (say.textContent !== said) say.textContent = said;
  }
  const partOf = (event) => event.target.closest?.("[data-link], [data-say], [data-set]");
  const tabStop = (at) => parts().forEach((part, i) => part.setAttribute("tabindex", i === at ? 0 : -1));
  const focused = () => partOf({ target: root.getRootNode().activeElement ?? root });
  picture.addEventListener("pointerover", (event) => light(partOf(event) ?? focused()));
  picture.addEventListener("pointerleave", () => light(focused()));
  picture.addEventListener("focusin", (event) => {
    tabStop(parts().indexOf(partOf(event)));
    light(partOf(event));
  });
  picture.addEventListener("focusout", () => light(null));
  function choose(part) {
    const [name, value] = part?.dataset.set?.split(/=(.*)/s) ?? [], control = controls.find((one) => one.name === name);
    if (!control) return;
    const place = { slider: control.options.indexOf(value), switch: value === "true" }[control.kind] ?? value;
    if (place !== -1) ask(name, place);
  }
  root.addEventListener("click", (event) => {
    if (event.target.dataset.play) play(event.target.dataset.play);
    else choose(event.target.closest("[data-set]"));
  });
  picture.addEventListener("keydown", (event) => { // one Tab stop, where the focus was last; arrows go from part to part
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key] ?? NaN;
    const all = parts(), to = all.indexOf(partOf(event)) + by;
    if (all[to]) { event.preventDefault(); all[to].focus(); }
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey) choose(partOf(event));
  });
  function draw() {
    const drawn = model.get("drawn"), had = parts().indexOf(focused()), was = pointed;
    if (drawn.number < number) return;
    waiting = false;
    busy.textContent = "";
    picture.innerHTML = drawn.html;
    tabStop(Math.max(had, 0));
    if (had >= 0) parts()[had]?.focus();
    else light(was === null ? null : parts().find((part) => part.dataset.link === was));
    if (wanted) send();
  }
  function moved() { // from Python, or in another view
    if (model.get("asked").number <= number) return;
    ({ number, at } = model.get("asked"));
    controls = model.get("controls");
    place();
  }

  el.append(root);
  place();
  draw();
  model.on("change:drawn", draw);
  model.on("change:asked", moved);
  return () => { clearInterval(playing); clearTimeout(timer); model.off("change:drawn", draw); model.off("change:asked", moved); };
}

export default { render };
