// Draws the timeline above its stage, on top of stage.js. Python sends `run` whole: a row a request, one
// letter a step. `step` is where everybody looks.
// Neighbouring cells of one kind are one element, so that 64 rows of 1,200 steps stay a few hundred elements.

const clamp = (n, low, high) => Math.max(low, Math.min(high, n));
const ENDS = { stop: "the model ended it", length: "it has all its tokens", abort: "it was aborted" };
const END = html`<i class="pt-end"></i>`;
const BARS = 44; // how high the bars are

function renderTimeline({ model, el: host }) {
  let run, looks, width;
  let step = 0; // where the slider is
  let row = 0; // the row that the keyboard is in
  let hovered = null; // {row, step} under the pointer
  let spoken = "";

  const root = makeRoot("timeline");
  root.className = "pl-root pt-root";
  const find = (css) => root.querySelector(css);
  const within = (s) => clamp(s, Math.min(1, run.steps), run.steps);

  // ---- the page
  function paint() {
    const { steps, rows, kinds, headline, hidden } = run;
    step = within(model.get("step"));
    width = clamp(Math.floor((2 * ((find(".pt-scroll")?.clientWidth ?? 0) - 84)) / Math.max(1, steps)) / 2, 1, 26);
    const position = `Step ${step} of ${steps}`;
    const there = kinds.filter(({ letter }) => rows.some((one) => one.kinds.includes(letter)));
    const every = [1, 2, 5, 10, 20, 50, 100].find((n) => n * width >= 28) ?? 200;
    const marks = Array.from({ length: Math.floor(steps / every) }, (_, i) => (i + 1) * every);
    root.style.setProperty("--w", `${width}px`);
    root.classList.toggle("pt-thin", width < 7);
    show(root, html`
      <p class="pl-prompt">${steps ? headline : "Nothing has run yet."}${hidden}</p>
      <div class="pt-legend">
        ${there.map((kind) => html`<span><b ${look(kind, 1)}><span>${kind.letter}</span></b>${kind.name}</span>`)}
        ${rows.some(({ end }) => end) ? html`<span>${END}finished</span>` : ""}</div>
      <div class="pt-scroll"><div class="pt-inner">
        <div class="pt-rows" role="grid" aria-label="what each request did, step by step" aria-colcount="${steps}"
          data-own></div>
        <div class="pt-foot" aria-hidden="true">
          <div class="pt-row pt-bars" data-own></div>
          <div class="pt-row pt-axis"><span class="pt-name">step</span>
            <div class="pt-strip">${marks.map((n) => html`<span style="--s: ${n}">${n}</span>`)}</div></div></div>
        <i class="pt-hover" style="--s: ${hovered?.step}" ${hovered ? "" : "hidden"}></i>
        <i class="pt-now" style="--s: ${step}" ${step ? "" : "hidden"}></i></div></div>
      <label class="pt-step"><span class="pl-step">${position}</span><input type="range" class="pl-scrubber"
        min="1" max="${Math.max(1, steps)}" aria-label="step" aria-valuetext="${position}"></label>
      <p class="pl-detail">${hovered ? describe(rows[hovered.row], hovered.step) : describeStep(step)}</p>
      <div class="pl-spoken" aria-live="polite">${spoken}</div>`);
    show(find(".pt-rows"), html`${rows.map(line)}`);
    show(find(".pt-bars"), bars());
    find(".pl-scrubber").value = step;
    find('.pt-rows [tabindex="0"]')?.setAttribute("tabindex", -1);
    runAt(row, step)?.setAttribute("tabindex", 0);
    Object.assign(root.dataset, { steps: run.steps, step });
  }

  const look = ({ color, pattern, pale }, steps) =>
    html`class="pt-run pl-hatch pl-p${pattern} ${pale ? "pt-pale" : ""}" style="--c: ${color}; --n: ${steps}"`;

  function line({ name, color, pattern, first, kinds, end }, r) {
    const runs = [...kinds.matchAll(/(.)\1*/g)].map(({ 0: cells, index }) => {
      const kind = looks[cells[0]], from = first + index, to = from + cells.length - 1;
      const said = `${name}, ${kind.name}, ${from === to ? `step ${from}` : `steps ${from} to ${to}`}`;
      return html`<button type="button" role="gridcell" tabindex="-1" aria-colindex="${from}"
        aria-colspan="${cells.length}" aria-label="${said}" data-first="${from}" data-last="${to}"
        ${look(kind, cells.length)}><span>${kind.letter}</span></button>`;
    });
    return html`<div class="pt-row" role="row" data-row="${r}">
      <span class="pt-name" role="rowheader">
        <i class="pl-swatch pl-hatch pl-p${pattern}" style="--c: ${color}"></i>${name}</span>
      <div class="pt-strip" role="presentation" style="--s: ${first}">${runs}${end ? END : ""}</div></div>`;
  }

  function bars() { // tokens of each step, stacked by kind
    const most = Math.max(1, ...run.batches.map((batch) => Object.values(batch).reduce((a, b) => a + b)));
    const tops = run.batches.map(() => BARS);
    const paths = run.kinds.map(({ letter, color }) => {
      const parts = run.batches.map((batch, i) => {
        const height = (BARS * (batch[letter] ?? 0)) / most, bottom = tops[i];
        tops[i] -= height;
        return height ? `M${i} ${bottom}h.96v${-height}H${i}Z` : "";
      });
      return html`<path d="${parts.join("")}" fill="${color}"/>`;
    });
    return html`<span class="pt-name">tokens\nup to ${most}</span><svg preserveAspectRatio="none"
      viewBox="0 0 ${run.steps} ${BARS}" style="--n: ${run.steps}">${paths}</svg>`;
  }

  function describeStep(s) {
    if (!s) return "When the engine runs, its requests become rows here.";
    const parts = run.kinds.flatMap(({ letter, name }) => {
      const names = run.rows.filter(({ kinds, first }) => kinds[s - first] === letter).map((one) => one.name);
      const tokens = run.batches[s - 1][letter];
      return names.length ? `${name} ${names.join(", ")}${tokens ? ` (${plural(tokens, "token")})` : ""}` : [];
    });
    return `Step ${s}: ${parts.join("; ")}. Point at a cell, or move there with the arrow keys, to read it.`;
  }

  function describe({ name, first, kinds, cells, end }, s) {
    const at = s - first, kind = looks[kinds[at]];
    if (!kind) return `${name}, step ${s}: ${at < 0 ? "not here yet" : `over; ${ENDS[end] ?? "not drawn"}`}.`;
    const [start, tokens, wrote, reads, writes] = cells[at] || [0, 0, 0, "", ""];
    const where = tokens > 1 ? `: tokens ${start}–${start + tokens - 1}` : tokens ? `: token ${start}` : "";
    const cached = kind.letter === "P" && start && !/[PR]/.test(kinds.slice(0, at));
    return [
      `${name}, step ${s}, ${kind.name}${where}${reads && ` “${reads}”`}`,
      cached && `the ${start} before were cached`,
      wrote && `writes ${wrote > 1 ? `${wrote} tokens, ` : ""}“${writes}”`,
      at === kinds.length - 1 && ENDS[end],
    ].filter(Boolean).join("; ") + ".";
  }

  // ---- where one looks
  function runAt(r, s) {
    const runs = [...(find(".pt-rows").children[r]?.querySelectorAll(".pt-run") ?? [])];
    return runs.find((one) => s <= one.dataset.last) ?? runs.at(-1);
  }

  function seek(s) {
    if (within(s) === model.get("step")) return;
    model.set("step", within(s));
    model.save_changes();
  }

  function point(to) {
    hovered = to;
    queueMicrotask(paint);
  }

  // ---- pointer
  function cellAt(event) {
    const line = event.target.closest("[data-row]");
    if (!line) return null;
    const s = Math.floor((event.clientX - line.lastElementChild.getBoundingClientRect().left) / width) + 1;
    return s >= 1 && s <= run.steps ? { row: Number(line.dataset.row), step: s } : null;
  }
  root.addEventListener("pointermove", (event) => point(cellAt(event)));
  root.addEventListener("click", (event) => {
    const to = event.detail ? cellAt(event) : null; // Enter on a cell: it is where one looks already
    if (!to) return;
    row = to.row;
    seek(to.step);
  });
  root.addEventListener("input", ({ target }) => seek(Number(target.value)));

  // ---- keyboard: one tab stop; left and right move in time, up and down between requests
  root.addEventListener("keydown", (event) => {
    if (!event.target.classList.contains("pt-run")) return;
    const { first, kinds } = run.rows[row];
    const [down, to] = {
      ArrowLeft: [0, step - 1], ArrowRight: [0, step + 1], Home: [0, first], End: [0, first + kinds.length - 1],
      ArrowUp: [-1, step], ArrowDown: [1, step],
    }[event.key] ?? [];
    if (to === undefined) return;
    event.preventDefault();
    row = clamp(row + down, 0, run.rows.length - 1);
    seek(to);
    runAt(row, step)?.focus({ preventScroll: true });
    hovered = { row, step };
    spoken = describe(run.rows[row], step);
    paint();
    find(".pt-now").scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  root.addEventListener("focusin", ({ target }) => {
    const line = target.closest("[data-row]");
    if (!line || !target.matches(":focus-visible")) return;
    row = Number(line.dataset.row);
    point({ row, step });
  });
  for (const kind of ["pointerleave", "focusout"]) root.addEventListener(kind, () => point(null));

  function changed() {
    run = model.get("run");
    looks = Object.fromEntries(run.kinds.map((kind) => [kind.letter, kind]));
    row = clamp(row, 0, Math.max(0, run.rows.length - 1));
    paint();
  }

  host.append(root);
  changed();
  const resized = new ResizeObserver(paint);
  resized.observe(find(".pt-scroll"));
  model.on("change:run", changed);
  model.on("change:step", paint);
  const moved = (to) => { if (to !== step) { model.set("step", to); model.save_changes(); } };
  const endStage = model.get("recorded").steps ? renderStage({ model, el: host, moved }) : () => {};
  return () => {
    resized.disconnect();
    model.off("change:run", changed);
    model.off("change:step", paint);
    endStage();
  };
}

stage.render = renderTimeline;
