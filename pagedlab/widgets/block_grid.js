// Draws the block grid. Python owns the pool: a click sends {op, ...}, and `state` comes back whole.
// Everything here compares the new state with what is on the page, and writes only what differs.

const PAGE = `
  <p class="pl-prompt" data-ref="prompt"></p>
  <div class="pl-goal" data-ref="goal" hidden>
    <p><i class="pl-flag"></i><b data-ref="goalText"></b></p><span data-ref="missing"></span>
    <div class="pl-help"><details><summary>Hint</summary><p data-ref="hint"></p></details>
      <button class="pl-button" type="button" data-op="solve"></button></div>
  </div>
  <div class="pl-toolbar" data-ref="toolbar" role="toolbar" aria-label="operations">
    <button class="pl-button" data-op="new" title="A sequence of its own, with its own block table">New sequence</button>
    <label class="pl-tokens">of <input class="pl-amount" data-ref="amount" type="number" min="1" max="99999"> tokens</label>
    <span class="pl-group"><span class="pl-chip" data-ref="chip"></span>
      <button class="pl-button" data-op="append" title="Add tokens to the selected sequence"></button>
      <button class="pl-button" data-op="write" title="Append one token. It is written in the last block if there is
room; if another sequence reads that block too, the block is copied first">Write 1</button>
      <button class="pl-button" data-op="fork" title="A second sequence over the same blocks">Fork</button>
      <button class="pl-button" data-op="free" title="Give back the blocks of the selected sequence">Free</button></span>
    <span class="pl-group">
      <button class="pl-button" data-op="undo" title="Back one step">Undo</button>
      <button class="pl-button" data-op="redo" title="Forward one step">Redo</button>
      <button class="pl-button" data-op="reset" title="Start over">Reset</button></span>
    <select class="pl-select" data-ref="examples" aria-label="play an example"><option value="">Examples …</option></select>
  </div>
  <div class="pl-alert" data-ref="alert" role="alert" hidden></div>
  <div class="pl-body">
    <div class="pl-main">
      <div class="pl-canvas"><div class="pl-blocks" data-ref="grid" role="grid" aria-label="physical blocks"></div>
        <svg class="pl-arrows" data-ref="arrows" aria-hidden="true"></svg></div>
      <p class="pl-detail" data-ref="detail"></p>
      <div class="pl-tables" data-ref="tables" role="grid" aria-label="block tables">
        <div class="pl-table pl-index" data-ref="index" aria-hidden="true"><span class="pl-name">logical block</span>
          <div class="pl-strip"></div></div></div>
    </div>
    <div class="pl-side">
      <div class="pl-stats" data-ref="stats"></div>
      <div class="pl-meters">
        <div class="pl-meter"><span>this pool</span><div><i data-ref="used"></i></div><b></b></div>
        <div class="pl-meter"><span>with copies</span><div><i class="pl-hatched" data-ref="copying"></i></div><b></b></div></div>
      <p class="pl-saved"><b data-ref="saved"></b> saved for
        <select class="pl-select" data-ref="model" aria-label="model"></select></p>
      <p class="pl-peak" data-ref="peak"></p>
      <div class="pl-history">
        <label><span class="pl-step" data-ref="stepText"></span>
          <input type="range" class="pl-scrubber" data-ref="scrubber" aria-label="step"></label>
        <p class="pl-calls" data-ref="calls"></p>
        <ol class="pl-log" data-ref="log"></ol></div>
    </div>
  </div>
  <div class="pl-spoken" data-ref="spoken" aria-live="polite"></div>`;

const { format } = new Intl.NumberFormat("en");
const plural = (n, word) => `${format(n)} ${word}${n === 1 ? "" : "s"}`;
const percent = (part, whole) => `${(100 * part) / whole}%`;

function el(tag, attributes = {}, ...children) {
  const node = tag === "path" ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function set(node, { text, ...attributes }) {
  if (text !== undefined && node.textContent !== text) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

function inBytes(n) {
  const power = n && Math.floor(Math.log2(n) / 10), value = n / 1024 ** power;
  return `${Number.isInteger(value) ? value : value.toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

// One Tab stop for a whole group; arrow keys, Home and End move inside it. `rows()` lists its elements by rows.
function roving(root, rows) {
  root.addEventListener("focusin", ({ target }) => {
    if (!target.hasAttribute("tabindex")) return;
    for (const other of root.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    target.tabIndex = 0;
  });
  root.addEventListener("keydown", (event) => {
    const all = rows();
    const r = all.findIndex((row) => row.includes(event.target));
    if (r < 0) return;
    const c = all[r].indexOf(event.target);
    const below = (row) => row && row[Math.min(c, row.length - 1)];
    const to = {
      ArrowLeft: () => all[r][c - 1], ArrowRight: () => all[r][c + 1], ArrowUp: () => below(all[r - 1]),
      ArrowDown: () => below(all[r + 1]), Home: () => all[r][0], End: () => all[r].at(-1),
    }[event.key];
    if (!to) return;
    event.preventDefault();
    to()?.focus();
  });
  return () => root.querySelector('[tabindex="0"]') ?? rows()[0]?.[0]?.setAttribute("tabindex", 0);
}

function render({ model, el: host }) {
  const { live, presets, models } = model.get("setup");
  let state = model.get("state");
  let selected = null; // name of the sequence that Append, Write, Fork and Free act on
  let pointed = null; // physical block under pointer or focus
  let asked = 0; // messages to Python whose answer is still to come
  let owners = []; // for each physical block: [{table, index, held}], a table lists it as `index` and holds `held` tokens

  const root = el("div", { class: `pl-root${live ? " pl-live" : ""}`, role: "group", "aria-label": "block pool" });
  root.innerHTML = PAGE;
  const $ = Object.fromEntries([...root.querySelectorAll("[data-ref]")].map((node) => [node.dataset.ref, node]));
  const buttons = Object.fromEntries([...root.querySelectorAll("[data-op]")].map((node) => [node.dataset.op, node]));
  const heldIn = (table, index) => Math.max(0, Math.min(state.block_size, table.tokens - index * state.block_size));

  // ---- once: what can be clicked
  const send = (message) => { root.dataset.asked = asked += 1; model.send(message); };
  const amount = () => Math.max(1, Math.trunc(Number($.amount.value)) || 1);
  $.amount.value = state.block_size + (state.block_size >> 2);
  $.amount.addEventListener("input", () => paintSelection());
  for (const [op, node] of Object.entries(buttons)) {
    node.type = "button";
    node.addEventListener("click", () => {
      // aria-disabled, not disabled: a button that loses the focus would leave the keyboard to the notebook.
      if (node.getAttribute("aria-disabled") === "true") return;
      send({ op, sequence: op === "new" ? null : selected, n: op === "new" || op === "append" ? amount() : null });
    });
  }
  $.examples.append(...presets.map((name) => new Option(name, name)));
  $.examples.hidden = !presets.length;
  $.examples.addEventListener("change", () => {
    send({ op: "preset", name: $.examples.value });
    $.examples.value = "";
  });
  $.model.append(...models.map(({ name }) => new Option(name, name)));
  $.model.value = "LLaMA-2-7B";
  $.model.addEventListener("change", () => paintCounters());
  $.scrubber.addEventListener("input", () => send({ op: "seek", step: Number($.scrubber.value) }));
  $.log.addEventListener("click", ({ target }) => target.value && send({ op: "seek", step: target.value }));
  $.toolbar.hidden = live;
  const bar = Object.values(buttons).filter((node) => $.toolbar.contains(node));
  for (const node of bar) node.tabIndex = -1;
  roving($.toolbar, () => [bar])();
  for (const name of ["used", "free", "shared", "copied", ...(live ? ["cached"] : [])]) {
    $.stats.append(el("div", { class: "pl-stat" }, el("b", { "data-stat": name }), el("span", {}, name)));
  }
  // JupyterLab's command mode reads single letters: without this, "d d" on a button deletes the cell.
  root.addEventListener("keydown", (event) => event.key !== "Tab" && event.stopPropagation());

  // ---- physical blocks
  const wide = state.counts.length <= 8 ? 8 : state.counts.length <= 128 ? 16 : 32; // as in static.py
  root.classList.toggle("pl-many", wide > 16);
  $.grid.style.setProperty("--columns", wide);
  const blocks = state.counts.map((_, id) => {
    const bands = el("span", { class: "pl-bands" }), badge = el("span", { class: "pl-count" });
    const node = el("button", { type: "button", role: "gridcell", tabindex: id ? -1 : 0, "data-block": id },
      bands, el("span", { class: "pl-id" }, String(id)), badge);
    return { node, bands, badge, seen: "" };
  });
  const gridRows = [];
  for (let i = 0; i < blocks.length; i += wide) gridRows.push(blocks.slice(i, i + wide).map((block) => block.node));
  $.grid.append(...gridRows.map((row) => el("div", { class: "pl-row", role: "row" }, ...row)));
  roving($.grid, () => gridRows);

  function paintBlock(id) {
    const block = blocks[id], count = state.counts[id], own = owners[id], kept = !count && state.texts?.[id];
    const role = ["source", "destination"].findLast((_, end) => state.copies.some((copy) => copy[end] === id)) ?? "";
    const key = [count, role, kept, ...own.map(({ table, held }) => `${table.name},${table.color},${held}`)].join(";");
    if (block.seen === key) return;
    const classes = { used: count, empty: !count, shared: count > 1, lost: count && !own.length && !live, [role]: role,
      kept, fresh: count && block.seen.startsWith("0;") };
    block.seen = key;
    block.node.className = ["pl-block", ...Object.keys(classes).filter((name) => classes[name]).map((name) => `pl-${name}`)].join(" ");
    block.bands.replaceChildren(...own.slice(0, 4).map(({ table, held }) => el("i", { class: `pl-fill pl-p${table.pattern}`,
      style: `--c: ${table.color}; --empty: ${percent(state.block_size - held, state.block_size)}` })));
    const readers = own.map(({ table }) => table.name);
    const held = Math.max(0, ...own.map((owner) => owner.held));
    set(block.badge, { text: count ? String(count) : "" });
    set(block.node, { "data-count": count, "data-owners": readers.join(" "), "data-held": held, "aria-label": count
      ? `block ${id}, ${readers.join(" and ") || "in no table"}, count ${count}, ${held} of ${state.block_size} tokens`
      : `block ${id}, free` });
  }

  function paintArrows() {
    $.arrows.replaceChildren();
    for (const [from, to] of state.copies) {
      if (!blocks[from] || !blocks[to] || from === to) continue;
      const [a, b] = [blocks[from].node, blocks[to].node];
      // From edge to edge, over the top within a row, so that numbers and badges stay readable.
      const down = b.offsetTop - a.offsetTop, x0 = a.offsetLeft + a.offsetWidth / 2, x1 = b.offsetLeft + b.offsetWidth / 2;
      const y0 = a.offsetTop + (down > 0 ? a.offsetHeight : 0), y1 = b.offsetTop + (down < 0 ? b.offsetHeight : 0);
      const mx = (x0 + x1) / 2, my = down ? (y0 + y1) / 2 : y0 - 16 - Math.abs(x1 - x0) / 8;
      const d = `M${x0} ${y0} Q${mx} ${my} ${x1} ${y1}`, angle = (Math.atan2(y1 - my, x1 - mx) * 180) / Math.PI;
      $.arrows.append(el("path", { d, class: "pl-halo" }), el("path", { d, class: "pl-arrow", pathLength: 1 }),
        el("path", { d: "M-9 -6 L3 0 L-9 6 Z", transform: `translate(${x1} ${y1}) rotate(${angle})`, class: "pl-head" }));
    }
  }

  // ---- block tables
  const rows = new Map(); // name of a sequence -> {node, label, strip, cells}
  const keepTabStop = roving($.tables, () => [...rows.values()].map((row) => [row.label, ...row.cells]));
  function newRow(name) {
    const label = el("button", { class: "pl-name", type: "button", role: "rowheader", tabindex: -1 },
      el("i", { class: "pl-swatch" }), el("b", {}, name), el("small"));
    const strip = el("div", { class: "pl-strip", role: "presentation" });
    return { node: el("div", { role: "row", "data-sequence": name }, label, strip), label, strip, cells: [] };
  }

  function paintTables() {
    const active = () => root.getRootNode().activeElement;
    const hadFocus = $.tables.contains(active());
    const gone = [...rows.keys()].filter((name) => !state.tables.some((table) => table.name === name));
    for (const name of gone) { rows.get(name).node.remove(); rows.delete(name); }
    state.tables.forEach((table, at) => {
      if (!rows.has(table.name)) rows.set(table.name, newRow(table.name));
      const row = rows.get(table.name);
      if ($.tables.children[at + 1] !== row.node) $.tables.insertBefore(row.node, $.tables.children[at + 1] ?? null);
      row.node.style.setProperty("--c", table.color);
      set(row.label.firstChild, { class: `pl-swatch pl-p${table.pattern}` });
      set(row.label.lastChild, { text: plural(table.tokens, "token") });
      while (row.cells.length > table.blocks.length) row.cells.pop().remove();
      table.blocks.forEach((id, index) => {
        if (!row.cells[index]) {
          row.cells.push(el("button", { class: "pl-cell", type: "button", role: "gridcell", tabindex: -1 }, el("i"), el("span")));
          row.strip.append(row.cells[index]);
        }
        const cell = row.cells[index], held = heldIn(table, index);
        set(cell.firstChild, { style: `width: ${percent(held, state.block_size)}` });
        set(cell.lastChild, { text: String(id ?? "?") });
        const said = `${table.name}, logical block ${index}: physical block ${id}, ${plural(held, "token")}`;
        set(cell, { "data-block": id ?? "", "aria-label": said });
      });
    });
    const longest = Math.max(0, ...state.tables.map((table) => table.blocks.length)), index = $.index.lastElementChild;
    $.index.hidden = !longest;
    while (index.children.length < longest) index.append(el("span", {}, String(index.children.length)));
    while (index.children.length > longest) index.lastChild.remove();
    keepTabStop();
    // The row that had the focus may be gone: keep the keyboard inside the widget.
    if (hadFocus && !$.tables.contains(active())) (rows.get(selected)?.label ?? buttons.new).focus();
  }

  // ---- selection, pointing
  const select = (name) => { selected = name; paintSelection(); };
  function paintSelection() {
    const table = state.tables.find((one) => one.name === selected);
    for (const [name, row] of rows) {
      set(row.node, { "aria-selected": name === selected, class: `pl-table${name === selected ? " pl-selected" : ""}` });
    }
    set($.prompt, { text: live ? sayLive() : sayWhatNext(table) });
    const able = { undo: state.step > state.floor, redo: state.step < state.steps, reset: state.steps > state.floor };
    for (const op of ["append", "write", "fork", "free"]) able[op] = table;
    for (const op of Object.keys(able)) set(buttons[op], { "aria-disabled": !able[op] });
    set(buttons.append, { text: `Append ${amount()}` });
    set($.chip, { text: table?.name ?? "no sequence", style: `--c: ${table?.color ?? "var(--line)"}` });
  }

  function sayWhatNext(table) {
    if (!table) return `Start here: New sequence. Its ${plural(amount(), "token")} take blocks from the pool.`;
    if (state.step < state.steps) return `This is step ${state.step} of ${state.steps}. What you do now replaces what came after.`;
    const last = table.blocks.at(-1);
    if (table.tokens % state.block_size && state.counts[last] > 1) {
      return `${table.name} shares block ${last}, which has room. Write 1: who writes to a shared block copies it first.`;
    }
    const then = state.tables.length > 1 ? "Click a block or a row to select another sequence"
      : "Append to it, or Fork it: a second sequence over the same blocks";
    return `${table.name} is selected. ${then}.`;
  }

  function sayLive() {
    const cut = state.hidden ? ` Drawn are the first ${plural(blocks.length, "block")}, ${state.hidden} are not.` : "";
    const running = `${plural(state.tables.length, "sequence")} in ${plural(state.used, "block")}. Point at a block to read it.`;
    if (state.tables.length) return `Engine step ${state.engine_steps}: ${running}${cut}`;
    const then = state.steps > 1 ? "its blocks are free again. Drag the slider to look back." : "when it writes, blocks fill.";
    return `The engine is idle; ${then}${cut}`;
  }

  function point(id) {
    for (const node of root.querySelectorAll(".pl-lit")) node.classList.remove("pl-lit");
    if (id !== null) for (const node of root.querySelectorAll(`[data-block="${id}"]`)) node.classList.add("pl-lit");
    pointed = id;
    root.classList.toggle("pl-pointing", id !== null && state.counts[id] > 0);
    set($.detail, { text: id === null ? "Point at a block, or move there with the arrow keys, to see what it holds." : describe(id) });
  }

  function describe(id) {
    const count = state.counts[id], text = state.texts?.[id], step = state.born?.[id];
    if (!count) return `Block ${id} is free${text ? `, what it held is kept: “${text}”` : "."}`;
    const where = owners[id].map(({ table, index, held }) => {
      const first = index * state.block_size;
      const tokens = held > 1 ? `tokens ${first}–${first + held - 1}` : held ? `token ${first}` : "no token yet";
      return live ? `${table.name}, ${tokens}` : `${table.name}’s logical block ${index}, ${tokens}`;
    });
    if (live) return `Block ${id}, ${where.join("; ") || "held by no running sequence"}${text ? `: “${text}”` : ""}`;
    const origin = step ? [`taken in step ${step}, ${state.origins[step]}`] : [];
    if (!where.length) where.push("in no table: lost");
    const { index, held } = owners[id][0] ?? {}, size = state.block_size; // the slot formula, with the last token's numbers
    if (held) origin.push(`token ${index * size + held - 1} lies in slot ${id} × ${size} + ${held - 1} = ${id * size + held - 1}`);
    return [`Block ${id}: ${plural(count, "reference")}`, ...where, ...origin].join(" · ");
  }

  const blockAt = (event) => {
    const id = event.target.closest("[data-block]")?.dataset.block;
    return id && blocks[id] ? Number(id) : null;
  };
  for (const area of [$.grid, $.tables]) {
    for (const kind of ["pointerover", "focusin"]) area.addEventListener(kind, (event) => point(blockAt(event)));
    for (const kind of ["pointerleave", "focusout"]) area.addEventListener(kind, () => point(null));
  }
  root.addEventListener("click", (event) => {
    const row = [...rows].find((entry) => entry[1].node.contains(event.target));
    const readers = owners[blockAt(event)]?.map(({ table }) => table.name) ?? [];
    if (row) select(row[0]);
    // a second click goes on to the next sequence that shares the block
    else if (readers.length) select(readers[(readers.indexOf(selected) + 1) % readers.length]);
  });

  // ---- counters, history, messages
  function paintCounters() {
    for (const node of $.stats.querySelectorAll("b")) set(node, { text: format(state[node.dataset.stat]) });
    for (const name of ["used", "copying"]) {
      $[name].style.width = percent(state[name], Math.max(1, state.used, state.copying));
      set($[name].parentNode.nextElementSibling, { text: plural(state[name], "block") });
    }
    const { bytes } = models.find(({ name }) => name === $.model.value);
    set($.saved, { text: inBytes(Math.max(0, state.copying - state.used) * state.block_size * bytes) });
    if (live) set($.peak, { text: `At most: ${plural(state.peak.used, "block")} used, ${plural(state.peak.sequences, "sequence")}.` });
  }

  function paintHistory() {
    const text = `${live ? "Frame" : "Step"} ${state.step} of ${state.steps}`;
    set($.stepText, { text });
    set($.scrubber, { min: state.floor, max: Math.max(state.floor + 1, state.steps), "aria-valuetext": text });
    if (!asked) $.scrubber.value = state.step; // an answer to an earlier place must not pull a moving slider back
    if (live) return;
    set($.calls, { text: [...state.calls.slice(0, 6), ...(state.calls.length > 6 ? ["…"] : [])].join(" · ") });
    while ($.log.children.length < state.log.length) $.log.append(el("li"));
    while ($.log.children.length > state.log.length) $.log.lastChild.remove();
    state.log.forEach(([text, bad], i) => {
      const value = state.log_first + i + 1, time = value === state.step ? "pl-now" : value > state.step ? "pl-later" : "";
      set($.log.children[i], { text, value, class: `${time}${bad ? " pl-bad" : ""}` });
    });
    set($.spoken, { text: state.note ?? state.log[state.step - 1 - state.log_first]?.[0] ?? "the pool is empty" });
  }

  function scroll() { // what is new comes into view, and nothing but these two boxes moves
    for (const [box, node] of [[$.log, $.log.querySelector(".pl-now")], [$.tables, rows.get(selected)?.node]]) {
      const top = node ? node.offsetTop - box.offsetTop - box.scrollTop : 0;
      if (top < 0 || top + node?.offsetHeight > box.clientHeight) box.scrollTop += top - box.clientHeight + node.offsetHeight + 4;
    }
  }

  function paintAlert() {
    const lines = [state.note, state.error, ...state.problems].filter(Boolean);
    $.alert.hidden = !lines.length;
    set($.alert, { text: [...lines.slice(0, 4), ...(lines.length > 4 ? [`and ${lines.length - 4} more`] : [])].join("\n") });
  }

  function paintGoal() {
    $.goal.hidden = !state.challenge;
    if (!state.challenge) return;
    const { goal, missing, why, hint, solved: [at, of] } = state.challenge;
    $.goal.classList.toggle("pl-done", !missing.length);
    set($.goalText, { text: goal });
    set($.missing, { text: missing.length ? `Not yet: ${missing.join("; ")}.` : `Done. ${why}` });
    set($.hint, { text: hint });
    const next = at ? `Solution: step ${at + 1} of ${of}` : "Show the solution, step by step";
    set(buttons.solve, { text: at === of ? "Solution: once more" : next });
  }

  // ---- a new state
  function paint() {
    state = model.get("state");
    asked = Math.max(0, asked - 1);
    owners = state.counts.map(() => []);
    for (const table of state.tables) {
      table.blocks.forEach((id, index) => owners[id]?.push({ table, index, held: heldIn(table, index) }));
    }
    if (state.focus) selected = state.focus;
    if (!state.tables.some(({ name }) => name === selected)) selected = (live ? null : state.tables.at(-1)?.name) ?? null;
    blocks.forEach((_, id) => paintBlock(id));
    paintArrows();
    paintTables();
    paintSelection();
    paintCounters();
    paintHistory();
    paintAlert();
    paintGoal();
    scroll();
    point(pointed); // tables may have new cells to light
    Object.assign(root.dataset, { serial: state.serial, asked });
  }

  host.append(root);
  paint();
  const resized = new ResizeObserver(() => { paintArrows(); scroll(); });
  resized.observe($.grid);
  model.on("change:state", paint);
  return () => { resized.disconnect(); model.off("change:state", paint); };
}

export default { render };
