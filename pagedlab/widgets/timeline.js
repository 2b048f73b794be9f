// Draws the timeline. Python sends `state` whole: a row a request, one letter a step. `step` is where everybody looks.
// Neighbouring cells of one kind are one element, so that 64 rows of 1,200 steps stay a few hundred elements.

const PAGE = `
  <p class="pl-prompt" data-ref="headline"></p>
  <div class="pt-legend" data-ref="legend"></div>
  <div class="pt-scroll" data-ref="scroll"><div class="pt-inner" data-ref="inner">
    <div data-ref="rows" role="grid" aria-label="what each request did, step by step"></div>
    <div class="pt-foot"><div class="pt-row pt-bars" aria-hidden="true"><span class="pt-name" data-ref="most"></span><svg data-ref="bars"></svg></div>
    <div class="pt-row pt-axis" aria-hidden="true"><span class="pt-name">step</span><div class="pt-strip" data-ref="axis"></div></div></div>
    <i class="pt-hover" data-ref="hover" hidden></i><i class="pt-now" data-ref="now"></i></div></div>
  <label class="pt-step"><span class="pl-step" data-ref="stepText"></span>
    <input type="range" class="pl-scrubber" data-ref="scrubber" min="1" aria-label="step"></label>
  <p class="pl-detail" data-ref="detail"></p>
  <div class="pl-spoken" data-ref="spoken" aria-live="polite"></div>`;

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const clamp = (n, low, high) => Math.max(low, Math.min(high, n));
const ENDS = { stop: "the model ended it", length: "it has all its tokens", abort: "it was aborted" };

function render({ model, el: host }) {
  let state, looks, width, runs; // runs: for each row [{first, last, node}], steps counted from 1
  let step = 0; // where the slider is
  let row = 0; // the row that the keyboard is in
  let hovered = null; // {row, step} under the pointer

  const root = document.createElement("div");
  root.className = "pl-root pt-root";
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "timeline");
  root.innerHTML = PAGE;
  const $ = Object.fromEntries([...root.querySelectorAll("[data-ref]")].map((node) => [node.dataset.ref, node]));

  // ---- a new state
  const look = ({ color, pattern, pale }) => `class="pt-run pl-p${pattern}${pale ? " pt-pale" : ""}" style="--c: ${color};`;

  function paint() {
    state = model.get("state");
    looks = Object.fromEntries(state.kinds.map((kind) => [kind.letter, kind]));
    const hadFocus = $.rows.contains(root.getRootNode().activeElement);
    const there = state.kinds.filter(({ letter }) => state.rows.some(({ kinds }) => kinds.includes(letter)));
    $.headline.textContent = (state.steps ? state.headline : "Nothing has run yet.") + state.hidden;
    $.legend.innerHTML = there.map((kind) => `<span><b ${look(kind)} --w: 24px"><span>${kind.letter}</span></b>${kind.name}</span>`)
      .join("") + (state.rows.some(({ end }) => end) ? '<span><i class="pt-end"></i>finished</span>' : "");
    runs = state.rows.map(({ first, kinds }) => [...kinds.matchAll(/(.)\1*/g)].map(({ 0: cells, index }) =>
      ({ kind: looks[cells[0]], first: first + index, last: first + index + cells.length - 1 })));
    $.rows.innerHTML = state.rows.map((one, r) => `<div class="pt-row" role="row" data-row="${r}"><span class="pt-name" role="rowheader">
      <i class="pl-swatch pl-p${one.pattern}" style="--c: ${one.color}"></i>${escaped(one.name)}</span>
      <div class="pt-strip" role="presentation">${runs[r].map(({ kind, first, last }) => `<button type="button" role="gridcell" tabindex="-1"
        aria-colindex="${first}" aria-colspan="${last - first + 1}" data-first="${first}" data-last="${last}" ${look(kind)}"
        aria-label="${escaped(one.name)}, ${kind.name}, ${first === last ? `step ${first}` : `steps ${first} to ${last}`}"
        ><span>${kind.letter}</span></button>`).join("")}${one.end ? '<i class="pt-end"></i>' : ""}</div></div>`).join("");
    state.rows.forEach((_, r) => {
      [...$.rows.children[r].querySelectorAll(".pt-run")].forEach((node, i) => { runs[r][i].node = node; });
    });
    $.rows.setAttribute("aria-colcount", state.steps);
    $.scrubber.max = Math.max(1, state.steps);
    row = clamp(row, 0, Math.max(0, state.rows.length - 1));
    fit();
    move();
    if (hadFocus) runAt(row, step)?.node.focus();
    root.dataset.serial = state.serial;
  }

  function fit() { // as wide as there is room
    const room = $.scroll.clientWidth - 84;
    width = clamp(Math.floor((2 * room) / Math.max(1, state.steps)) / 2, 1, 26);
    root.style.setProperty("--w", `${width}px`);
    root.classList.toggle("pt-thin", width < 7);
    for (const [r, one] of state.rows.entries()) {
      const strip = $.rows.children[r].lastElementChild;
      strip.style.paddingLeft = `${width * (one.first - 1)}px`;
      for (const { first, last, node } of runs[r]) {
        node.style.width = `${width * (last - first + 1)}px`;
        node.firstChild.hidden = width * (last - first + 1) < 15;
      }
    }
    const most = Math.max(1, ...state.batches.map((batch) => Object.values(batch).reduce((a, b) => a + b, 0)));
    $.most.textContent = `tokens\nup to ${most}`;
    const bar = (x, y, height, color) => `M${x} ${y}h${Math.max(1, width - (width > 4))}v${-height}H${x}Z`;
    const paths = Object.fromEntries(state.kinds.map(({ letter }) => [letter, ""]));
    state.batches.forEach((batch, i) => {
      let y = 44;
      for (const { letter } of state.kinds) {
        if (!batch[letter]) continue;
        paths[letter] += bar(i * width, y, (44 * batch[letter]) / most);
        y -= (44 * batch[letter]) / most;
      }
    });
    $.bars.setAttribute("width", width * state.steps);
    $.bars.innerHTML = state.kinds.map(({ letter, color }) => `<path d="${paths[letter]}" fill="${color}"/>`).join("");
    const every = [1, 2, 5, 10, 20, 50, 100].find((n) => n * width >= 28) ?? 200;
    $.axis.innerHTML = Array.from({ length: Math.floor(state.steps / every) }, (_, i) => (i + 1) * every)
      .map((n) => `<span style="left: ${width * (n - 0.5)}px">${n}</span>`).join("");
    place();
  }

  // ---- where one looks
  const left = (s) => `${74 + width * (s - 1)}px`;
  const runAt = (r, s) => runs[r]?.find(({ last }) => s <= last) ?? runs[r]?.at(-1);

  function place() {
    $.now.hidden = !step;
    $.now.style.left = left(step);
    $.hover.hidden = !hovered;
    if (hovered) $.hover.style.left = left(hovered.step);
  }

  function move() { // the slider, the line, the one tab stop and the words follow `step`
    step = clamp(model.get("step"), Math.min(1, state.steps), state.steps);
    if (Number($.scrubber.value) !== step) $.scrubber.value = step;
    const text = `Step ${step} of ${state.steps}`;
    $.stepText.textContent = text;
    $.scrubber.setAttribute("aria-valuetext", text);
    $.rows.querySelector('[tabindex="0"]')?.setAttribute("tabindex", -1);
    runAt(row, step)?.node.setAttribute("tabindex", 0);
    place();
    tell();
    root.dataset.step = step;
  }

  function seek(s) {
    s = clamp(s, Math.min(1, state.steps), state.steps);
    if (s === model.get("step")) return;
    model.set("step", s);
    model.save_changes();
  }

  function tell() {
    const said = hovered ? describe(hovered.row, hovered.step) : sum(step);
    if ($.detail.textContent !== said) $.detail.textContent = said;
  }

  function sum(s) {
    if (!s) return "When the engine runs, its requests become rows here.";
    const groups = {};
    for (const one of state.rows) {
      const kind = one.kinds[s - one.first];
      if (kind) (groups[kind] ??= []).push(one.name);
    }
    const parts = state.kinds.filter(({ letter }) => groups[letter]).map(({ letter, name }) => {
      const tokens = state.batches[s - 1][letter];
      return `${name} ${groups[letter].join(", ")}${tokens ? ` (${plural(tokens, "token")})` : ""}`;
    });
    return `Step ${s}: ${parts.join("; ")}. Point at a cell, or move there with the arrow keys, to read it.`;
  }

  function describe(r, s) {
    const one = state.rows[r], at = s - one.first, kind = looks[one.kinds[at]];
    if (!kind) return `${one.name}, step ${s}: ${at < 0 ? "not here yet" : `over; ${ENDS[one.end] ?? "not drawn"}`}.`;
    const [start, tokens, wrote, reads, writes] = one.cells[at] || [0, 0, 0, "", ""];
    const where = tokens > 1 ? `tokens ${start}–${start + tokens - 1}` : tokens ? `token ${start}` : "";
    const cached = kind.letter === "P" && start && !/[PR]/.test(one.kinds.slice(0, at)) ? `; the ${start} before were cached` : "";
    const read = reads ? ` “${reads}”` : "";
    const wrote_ = wrote ? `; writes ${wrote > 1 ? `${wrote} tokens, ` : ""}“${writes}”` : "";
    const end = one.end && at === one.kinds.length - 1 ? `; ${ENDS[one.end]}` : "";
    return `${one.name}, step ${s}, ${kind.name}${where ? `: ${where}` : ""}${read}${cached}${wrote_}${end}.`;
  }

  // ---- pointer
  function cellAt(event) {
    const line = event.target.closest("[data-row]");
    if (!line) return null;
    const s = Math.floor((event.clientX - line.lastElementChild.getBoundingClientRect().left) / width) + 1;
    return s >= 1 && s <= state.steps ? { row: Number(line.dataset.row), step: s } : null;
  }
  const point = (to) => { hovered = to; place(); tell(); };
  $.rows.addEventListener("pointermove", (event) => point(cellAt(event)));
  $.rows.addEventListener("pointerleave", () => point(null));
  $.inner.addEventListener("click", (event) => {
    if (!event.detail) return; // Enter on a cell: it is where one looks already
    const to = cellAt(event);
    if (to) { row = to.row; seek(to.step); }
  });
  $.scrubber.addEventListener("input", () => seek(Number($.scrubber.value)));

  // ---- keyboard: one tab stop; left and right move in time, up and down between requests
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Tab") event.stopPropagation(); // JupyterLab's "d d" would delete the cell
    if (!event.target.classList.contains("pt-run")) return;
    const line = runs[row];
    const to = {
      ArrowLeft: () => seek(step - 1), ArrowRight: () => seek(step + 1), Home: () => seek(line[0].first),
      End: () => seek(line.at(-1).last), ArrowUp: () => { row = Math.max(0, row - 1); },
      ArrowDown: () => { row = Math.min(state.rows.length - 1, row + 1); },
    }[event.key];
    if (!to) return;
    event.preventDefault();
    to();
    move();
    runAt(row, step)?.node.focus({ preventScroll: true });
    hovered = { row, step };
    place();
    tell();
    $.spoken.textContent = $.detail.textContent;
    $.now.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  $.rows.addEventListener("focusin", ({ target }) => {
    const line = target.closest("[data-row]");
    if (!line || !target.matches(":focus-visible")) return;
    row = Number(line.dataset.row);
    point({ row, step });
  });
  $.rows.addEventListener("focusout", () => point(null));

  host.append(root);
  paint();
  const resized = new ResizeObserver(() => fit());
  resized.observe($.scroll);
  const stepped = () => { if (step !== model.get("step")) move(); };
  model.on("change:state", paint);
  model.on("change:step", stepped);
  return () => { resized.disconnect(); model.off("change:state", paint); model.off("change:step", stepped); };
}

export default { render };
