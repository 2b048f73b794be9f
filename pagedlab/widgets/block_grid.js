// Draws the block grid. Python owns the pool: a click sends {op, ...}, and `state` comes back whole. The page is a
// template of it; `show` compares with what is there and writes what differs. page.js stands before this file.

const button = (op, able, text, title) => html`<button class="pl-button" type="button" tabindex="-1" data-op="${op}"
  title="${title}" aria-disabled="${!able}">${text}</button>`;

function renderGrid({ model, el: host }) {
  const { presets, models } = model.get("setup");
  let state = model.get("state");
  let selected = null; // name of the sequence that Append, Write, Fork and Free act on
  let pointed = null; // physical block under pointer or focus
  let asked = 0; // messages to Python whose answer is still to come
  let owners = []; // for each physical block: [{table, index, held}], listed as `index` and holding `held` tokens
  let before = []; // the counts before this state

  const root = makeRoot("block pool"), keepTabStops = roving(root);
  const find = (css) => root.querySelector(css);
  const { block_size: size, columns: wide } = state;
  const ids = [...state.counts.keys()];
  const rows = ids.filter((id) => id % wide === 0).map((id) => ids.slice(id, id + wide));
  const heldIn = (table, index) => Math.max(0, Math.min(size, table.tokens - index * size));
  const amount = () => Math.max(1, Math.trunc(Number(find(".pl-amount")?.value ?? size + (size >> 2))) || 1);

  // ---- what can be clicked, typed and pointed at
  const send = (message) => { root.dataset.asked = asked += 1; model.send(message); };
  const blockAt = ({ target }) => {
    const id = target.closest("[data-block]")?.dataset.block;
    return id in state.counts ? Number(id) : null;
  };
  root.addEventListener("click", (event) => {
    const [button, row, entry] = ["[data-op]", "[data-sequence]", "li"].map((css) => event.target.closest(css));
    const readers = owners[blockAt(event)]?.map(({ table }) => table.name) ?? [];
    if (button) {
      // aria-disabled, not disabled: a button that loses the focus would leave the keyboard to the notebook.
      if (button.getAttribute("aria-disabled") === "true") return;
      const { op } = button.dataset;
      send({ op, sequence: op === "new" ? null : selected, n: op === "new" || op === "append" ? amount() : null });
    } else if (entry) send({ op: "seek", step: entry.value });
    else if (row) selected = row.dataset.sequence;
    // a second click goes on to the next sequence that shares the block
    else if (readers.length) selected = readers[(readers.indexOf(selected) + 1) % readers.length];
    paint();
  });
  root.addEventListener("input", ({ target }) => {
    if (target.matches(".pl-scrubber")) send({ op: "seek", step: Number(target.value) });
    if (target.dataset.ref === "examples") {
      send({ op: "preset", name: target.value });
      target.value = "";
    }
    paint();
  });
  function point(id) {
    if (id === pointed) return;
    pointed = id;
    queueMicrotask(paint); // a block that goes while it is pointed at says so in the middle of painting
  }
  for (const kind of ["pointerover", "focusin"]) root.addEventListener(kind, (event) => point(blockAt(event)));
  for (const kind of ["pointerleave", "focusout"]) root.addEventListener(kind, () => point(null));

  // ---- the page, from `state`, `selected` and `pointed`
  function paint() {
    const { counts, tables, step, steps, used, copying, challenge, calls = [], log = [] } = state;
    const table = tables.find(({ name }) => name === selected);
    const wrong = [state.note, state.error, ...state.problems].filter(Boolean);
    if (wrong.length > 4) wrong.splice(4, Infinity, `and ${wrong.length - 4} more`);
    const stats = ["used", "free", "shared", "copied"];
    const { bytes } = models.find(({ name }) => name === (find("[data-ref=model]")?.value ?? "LLaMA-2-7B"));
    const position = `Step ${step} of ${steps}`;
    const spoken = state.note ?? log[step - 1 - state.log_first]?.[0] ?? "the pool is empty";
    root.className = classes({ root: true, many: wide > 16, pointing: counts[pointed] > 0 });
    show(root, html`
      <p class="pl-prompt">${sayWhatNext(table)}</p>
      <div class="pl-goal ${classes({ done: challenge && !challenge.missing.length })}" ${challenge ? "" : "hidden"}>
        ${challenge ? goal(challenge) : ""}</div>
      <div class="pl-toolbar" role="toolbar" aria-label="operations">
        ${button("new", true, "New sequence", "A sequence of its own, with its own block table")}
        <label class="pl-tokens">of <input class="pl-amount" type="number" min="1" max="99999" value="${amount()}">
          tokens</label>
        <span class="pl-group">
          <span class="pl-chip" style="--c: ${table?.color ?? "var(--line)"}">${selected ?? "no sequence"}</span>
          ${button("append", table, `Append ${amount()}`, "Add tokens to the selected sequence")}
          ${button("write", table, "Write 1", `Append one token. It is written in the last block if there is
room; if another sequence reads that block too, the block is copied first`)}
          ${button("fork", table, "Fork", "A second sequence over the same blocks")}
          ${button("free", table, "Free", "Give back the blocks of the selected sequence")}</span>
        <span class="pl-group">
          ${button("undo", step > 0, "Undo", "Back one step")}
          ${button("redo", step < steps, "Redo", "Forward one step")}
          ${button("reset", steps > 0, "Reset", "Start over")}</span>
        <select class="pl-select" data-ref="examples" aria-label="play an example" ${presets.length ? "" : "hidden"}>
          <option value="">Examples …</option>${presets.map((name) => html`<option>${name}</option>`)}</select>
      </div>
      <div class="pl-alert" role="alert" ${wrong.length ? "" : "hidden"}>${wrong.join("\n")}</div>
      <div class="pl-body">
        <div class="pl-main">
          <div class="pl-canvas">
            <div class="pl-blocks" role="grid" aria-label="physical blocks" style="--columns: ${wide}">
              ${rows.map(() => html`<div class="pl-row" role="row" data-own></div>`)}</div>
            <svg class="pl-arrows" aria-hidden="true" data-own></svg></div>
          <p class="pl-detail">${describe(pointed)}</p>
          <div class="pl-tables" role="grid" aria-label="block tables" data-own></div>
        </div>
        <div class="pl-side">
          <div class="pl-stats">${stats.map((name) => html`<div class="pl-stat">
            <b data-stat="${name}">${format(state[name])}</b><span>${name}</span></div>`)}</div>
          <div class="pl-meters">${meter("this pool", used, "")}${meter("with copies", copying, "pl-hatched")}</div>
          <p class="pl-saved"><b>${inBytes(Math.max(0, copying - used) * size * bytes)}</b> saved for
            <select class="pl-select" data-ref="model" aria-label="model">
              ${models.map(({ name }) => html`<option ${name === "LLaMA-2-7B" ? "selected" : ""}>${name}</option>`)}
            </select></p>
          <div class="pl-history">
            <label><span class="pl-step">${position}</span><input type="range" class="pl-scrubber" aria-label="step"
              min="0" max="${Math.max(1, steps)}" aria-valuetext="${position}"></label>
            <p class="pl-calls">${[...calls.slice(0, 6), ...(calls.length > 6 ? ["…"] : [])].join(" · ")}</p>
            <ol class="pl-log" tabindex="0" aria-label="steps so far">${log.map(logEntry)}</ol></div>
        </div>
      </div>
      <div class="pl-spoken" aria-live="polite">${spoken}</div>`);
    rows.forEach((ids, r) => show(find(".pl-blocks").children[r], html`${ids.map(block)}`));
    const longest = Math.max(0, ...tables.map(({ blocks }) => blocks.length));
    show(find(".pl-tables"), html`
      <div class="pl-table pl-index" aria-hidden="true" ${longest ? "" : "hidden"}>
        <span class="pl-name">logical block</span>
        <div class="pl-strip">${Array.from({ length: longest }, (_, index) => html`<span>${index}</span>`)}</div></div>
      ${tables.map(row)}`);
    if (!asked) find(".pl-scrubber").value = step; // a late answer must not pull a moving slider back
    keepTabStops();
  }

  function block(id) {
    const count = state.counts[id], own = owners[id], readers = own.map(({ table }) => table.name);
    const held = Math.max(0, ...own.map((owner) => owner.held));
    const who = `${readers.join(" and ") || "in no table"}, count ${count}, ${held} of ${size} tokens`;
    const end = [1, 0].find((place) => state.copies.some((copy) => copy[place] === id));
    const css = classes({ block: true, used: count, empty: !count, shared: count > 1, source: end === 0,
      destination: end === 1, lost: count && !own.length,
      fresh: count && before[id] === 0, lit: id === pointed });
    const bands = own.slice(0, 4).map(({ table, held }) => html`<i class="pl-fill pl-hatch pl-p${table.pattern}"
      style="--c: ${table.color}; --empty: ${percent(size - held, size)}"></i>`);
    return html`<button type="button" role="gridcell" tabindex="-1" class="${css}" data-block="${id}"
      data-count="${count}" data-owners="${readers.join(" ")}" aria-label="block ${id}, ${count ? who : "free"}">
      <span class="pl-bands">${bands}</span><span class="pl-id">${id}</span>
      <span class="pl-count">${count || ""}</span></button>`;
  }

  function row({ name, color, pattern, tokens, blocks }) {
    const cells = blocks.map((id, index) => {
      const held = heldIn({ tokens }, index), css = classes({ cell: true, lit: id !== null && id === pointed });
      const said = `${name}, logical block ${index}: physical block ${id}, ${plural(held, "token")}`;
      return html`<button type="button" role="gridcell" tabindex="-1" class="${css}" data-block="${id ?? ""}"
        aria-label="${said}"><i style="width: ${percent(held, size)}"></i><span>${id ?? "?"}</span></button>`;
    });
    return html`<div class="${classes({ table: true, selected: name === selected })}" role="row" style="--c: ${color}"
      data-sequence="${name}" aria-selected="${name === selected}">
      <button class="pl-name" type="button" role="rowheader" tabindex="-1"><b>${name}</b>
        <i class="pl-swatch pl-hatch pl-p${pattern}"></i><small>${plural(tokens, "token")}</small></button>
      <div class="pl-strip" role="presentation">${cells}</div></div>`;
  }

  const meter = (name, n, css) => html`<div class="pl-meter"><span>${name}</span>
    <div><i class="${css}" style="width: ${percent(n, Math.max(1, state.used, state.copying))}"></i></div>
    <b>${plural(n, "block")}</b></div>`;

  function logEntry([text, bad], i) {
    const value = state.log_first + i + 1;
    const css = classes({ now: value === state.step, later: value > state.step, bad });
    return html`<li value="${value}" class="${css}">${text}</li>`;
  }

  function goal({ goal, missing, hint, why, solved: [at, of] }) {
    const next = at === of ? "Solution: once more" : `Solution: step ${at + 1} of ${of}`;
    return html`<p><i class="pl-flag"></i><b>${goal}</b></p>
      <span>${missing.length ? `Not yet: ${missing.join("; ")}.` : `Done. ${why}`}</span>
      <div class="pl-help"><details><summary>Hint</summary><p>${hint}</p></details>
        <button class="pl-button" type="button" data-op="solve">
          ${at ? next : "Show the solution, step by step"}</button></div>`;
  }

  // ---- words
  function sayWhatNext(table) {
    if (!table) return `Start here: New sequence. Its ${plural(amount(), "token")} take blocks from the pool.`;
    const { step, steps, tables, counts } = state, last = table.blocks.at(-1);
    if (step < steps) return `This is step ${step} of ${steps}. What you do now replaces what came after.`;
    if (table.tokens % size && counts[last] > 1) {
      const copies = "Write 1: who writes to a shared block copies it first.";
      return `${table.name} shares block ${last}, which has room. ${copies}`;
    }
    const then = tables.length > 1 ? "Click a block or a row to select another sequence"
      : "Append to it, or Fork it: a second sequence over the same blocks";
    return `${table.name} is selected. ${then}.`;
  }

  function describe(id) {
    if (id === null) return "Point at a block, or move there with the arrow keys, to see what it holds.";
    const count = state.counts[id], step = state.born?.[id];
    if (!count) return `Block ${id} is free.`;
    const where = owners[id].map(({ table, index, held }) => {
      const first = index * size;
      const tokens = held > 1 ? `tokens ${first}–${first + held - 1}` : held ? `token ${first}` : "no token yet";
      return `${table.name}’s logical block ${index}, ${tokens}`;
    });
    if (!where.length) where.push("in no table: lost");
    const said = [`Block ${id}: ${plural(count, "reference")}`, ...where];
    if (step) said.push(`taken in step ${step}, ${state.origins[step]}`);
    const { index, held } = owners[id][0] ?? {}, at = held - 1; // the slot formula, with the last token's numbers
    if (held) said.push(`token ${index * size + at} lies in slot ${id} × ${size} + ${at} = ${id * size + at}`);
    return said.join(" · ");
  }

  // ---- a new state
  function place() { // arrows lie where the blocks are; what is new comes into view, and nothing but these boxes moves
    find(".pl-arrows").innerHTML = escape(state.copies.map((copy) =>
      arrow(...copy.map((id) => find(`.pl-block${withData("block", id)}`)))));
    for (const [box, css] of [[find(".pl-log"), ".pl-now"], [find(".pl-tables"), ".pl-selected"]]) {
      const node = box.querySelector(css), top = node ? node.offsetTop - box.offsetTop - box.scrollTop : 0;
      const below = top + (node?.offsetHeight ?? 0) - box.clientHeight;
      if (top < 0 || below > 0) box.scrollTop += below + 4;
    }
  }

  function changed() {
    before = state.counts;
    state = model.get("state");
    asked = Math.max(0, asked - 1);
    owners = state.counts.map(() => []);
    for (const table of state.tables) {
      table.blocks.forEach((id, index) => owners[id]?.push({ table, index, held: heldIn(table, index) }));
    }
    const names = state.tables.map(({ name }) => name);
    selected = [state.focus, selected, names.at(-1)].find((name) => names.includes(name)) ?? null;
    const active = () => root.getRootNode().activeElement;
    const hadFocus = active()?.closest(".pl-tables") && root.contains(active());
    paint();
    place();
    // The row that had the focus may be gone: keep the keyboard inside the widget.
    if (hadFocus && !root.contains(active())) (find(".pl-selected .pl-name") ?? find('[data-op="new"]')).focus();
    Object.assign(root.dataset, { serial: state.serial, asked });
  }

  host.append(root);
  changed();
  const resized = new ResizeObserver(place);
  resized.observe(find(".pl-blocks"));
  model.on("change:state", changed);
  return () => { resized.disconnect(); model.off("change:state", changed); };
}

const widget = { render: renderGrid };
export default widget;
