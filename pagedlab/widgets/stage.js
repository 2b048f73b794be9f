// The stage plays a recording, whose format docs/trace.md describes: answers on the left, blocks beside them, tables below.
// A model has `recorded`, `step` (-1: play from the first), `live` (more is to come) and, where it is to follow closely,
// `lag`: seconds it may be behind. page.js stands before this.

const EVERY = 16; // steps between two states that are kept to go back to
const RATES = [1, 2, 4, 8, 16, 32]; // steps a second
const COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"]; // as in colors.py
const STATES = { waiting: "waits", running: "writes", swapped: "parked on the host", stop: "done", length: "done, at its limit",
  abort: "aborted", dropped: "dropped" };

// The state after any step. `texts` and what is in them are never changed but replaced, so states share them.
function replay(recording) {
  const kept = []; // states 0, EVERY, 2 * EVERY, ...
  let steps = recording.steps, last = null;
  const copy = (s) => ({ ...s, counts: s.counts.slice(), kept: s.kept.slice(), texts: new Map(s.texts), said: new Map(s.said) });
  const empty = () => ({ at: -1, counts: new Uint32Array(recording.drawn), kept: new Uint8Array(recording.drawn),
    texts: new Map(), said: new Map(), used: 0, cached: 0, copied: 0 });

  function apply(state, now) {
    state.at += 1;
    Object.assign(state, { now, used: now.used ?? state.used, cached: now.cached ?? state.cached });
    for (const [id, n] of Object.entries(now.counts ?? {})) {
      if (!state.counts[id] && !state.kept[id]) state.said.delete(Number(id)); // somebody else's from now on
      state.counts[id] = n;
    }
    for (const [id, n] of Object.entries(now.kept ?? {})) state.kept[id] = n;
    for (const id of now.evicted ?? []) state.said.delete(id);
    for (const [name, change] of Object.entries(now.texts ?? {})) {
      const before = state.texts.get(name) ?? { name, blocks: [], words: [], tokens: 0, was: [] };
      const text = { ...before, ...change };
      for (const list of ["blocks", "words"]) {
        if (change[list]) text[list] = before[list].slice(0, change[list][0]).concat(change[list][1]);
      }
      if (before.blocks.length && !text.blocks.length) text.was = before.blocks; // where its words lay
      text.blocks.forEach((id, i) => state.said.set(id, { name, place: i }));
      state.texts.set(name, text);
    }
    state.copied += now.copies?.length ?? 0;
    return state;
  }

  return {
    get length() { return steps.length; },
    extend(more) { steps = more.steps; },
    state(k) {
      if (!kept.length) kept.push(apply(empty(), steps[0]));
      const before = kept[Math.min(kept.length - 1, Math.floor(k / EVERY))];
      const state = copy(last?.at <= k && last.at >= before.at ? last : before);
      while (state.at < k) {
        apply(state, steps[state.at + 1]);
        if (state.at === EVERY * kept.length) kept.push(copy(state));
      }
      return (last = state);
    },
  };
}

function renderStage({ model, el: host }) {
  const root = makeRoot("what the engine did, step by step"), keepTabStops = roving(root);
  const find = (css) => root.querySelector(css), all = (css) => root.querySelectorAll(css);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let recording, film, state, before, at = 0, playing = false, rate = 8, timer = 0, pointed = null, ids = [];
  const size = () => recording.block_size;
  const lookOf = ({ look }) => ({ color: COLORS[look % 7], pattern: (look + Math.floor(look / 7)) % 7 });
  const end = () => film.length - 1;

  // ---- playing
  function play(on) {
    clearTimeout(timer);
    playing = on;
    if (on) {
      const behind = end() - at; // while the engine writes on, the page must not fall back for ever
      const speed = model.get("live") ? Math.max(rate, behind / (model.get("lag") ?? 8)) : rate;
      const stride = Math.max(1, Math.round(speed / 60)); // no eye sees more pictures a second than that
      timer = setTimeout(tick, (1000 * stride) / speed, stride);
    }
    paint();
  }
  function tick(stride) {
    if (at < end()) go(at + stride);
    if (at < end() || model.get("live")) play(true);
    else play(false);
  }
  function go(step) {
    at = Math.max(0, Math.min(end(), step));
    before = state?.at === at - 1 ? state : at ? film.state(at - 1) : null;
    state = film.state(at);
    paint();
    if (playing && rate <= 8 && !still) drop();
  }

  // The words that got their slots in this step fall into their blocks.
  function drop() {
    const from = root.getBoundingClientRect(), running = [...state.texts.values()].filter((text) => text.state === "running");
    for (const { name, blocks, tokens, words } of running.slice(0, 4)) {
      const held = all(`${withData("text", name)} .ps-held`), a = held[held.length - 1]?.getClientRects();
      const b = find(`.pl-block${withData("block", blocks.at(-1))}`)?.getBoundingClientRect(), word = words[tokens - 1];
      if (!a?.length || !b || !word?.trim()) continue;
      const start = a[a.length - 1], ghost = find(".ps-air").appendChild(document.createElement("span"));
      ghost.className = "ps-drop";
      ghost.textContent = word.trim();
      ghost.style.cssText = `left: ${start.right - from.left}px; top: ${start.top - from.top}px`;
      const move = `translate(${b.left + b.width / 2 - start.right}px, ${b.top - start.top}px) scale(0.4)`;
      ghost.animate([{ opacity: 0.9 }, { opacity: 0.2, transform: move }], { duration: 420, easing: "ease-in" }).onfinish = () => ghost.remove();
    }
  }

  // ---- what can be clicked, typed and pointed at
  root.addEventListener("click", (event) => {
    const op = event.target.closest("[data-op]")?.dataset.op;
    if (op === "play") {
      if (!playing && at === end() && !model.get("live")) go(0);
      play(!playing);
    } else if (op) {
      play(false);
      go(op === "back" ? at - 1 : op === "on" ? at + 1 : 0);
    }
  });
  root.addEventListener("input", ({ target }) => {
    if (target.matches(".pl-scrubber")) {
      const step = Number(target.value);
      play(false);
      go(step);
    }
    if (target.matches(".ps-rate")) rate = Number(target.value);
  });
  root.addEventListener("keydown", (event) => {
    if (event.key !== " " || event.target.matches("button, select")) return;
    event.preventDefault();
    play(!playing);
  });
  function point(id) {
    if (id === pointed) return;
    pointed = id;
    light();
  }
  const blockAt = ({ target }) => target.closest("[data-block]")?.dataset.block || null;
  for (const kind of ["pointerover", "focusin"]) root.addEventListener(kind, (event) => point(blockAt(event)));
  for (const kind of ["pointerleave", "focusout"]) root.addEventListener(kind, () => point(null));

  function light() {
    for (const node of all(".pl-lit")) node.classList.remove("pl-lit");
    root.classList.toggle("pl-pointing", pointed !== null);
    if (pointed !== null) for (const node of all(withData("block", pointed))) node.classList.add("pl-lit");
    find(".pl-detail").textContent = describe(pointed);
  }

  // ---- the page
  function paint() {
    const { texts, counts, used, cached, copied } = state, shown = [...texts.values()].filter(({ state }) => state !== "dropped");
    const shared = counts.reduce((n, count) => n + (count > 1), 0), free = recording.num_blocks - used;
    const stats = { used, free, shared, copied, cached }, hidden = recording.num_blocks - recording.drawn;
    const position = `Step ${at} of ${end()}`, live = model.get("live"), said = say();
    root.className = `pl-root ps-root ${classes({ many: recording.drawn > 128, pointing: pointed !== null, playing })}`;
    show(root, html`
      <p class="pl-prompt">${said}</p>
      <div class="ps-controls">
        <span class="pl-group" role="toolbar" aria-label="playback">
          ${control("play", playing ? "❚❚ Pause" : at === end() && !live ? "↻ Again" : "▶ Play")}
          ${control("back", "‹", "one step back")}${control("on", "›", "one step on")}</span>
        <label><span class="pl-step">${position}</span><input type="range" class="pl-scrubber" aria-label="step" min="0"
          max="${Math.max(1, end())}" aria-valuetext="${position}"></label>
        <select class="pl-select ps-rate" aria-label="speed">${RATES.map((n) => html`
          <option value="${n}" ${n === 8 ? "selected" : ""}>${plural(n, "step")} a second</option>`)}</select></div>
      <div class="ps-main">
        <div class="ps-texts" data-own tabindex="0" role="group" aria-label="answers"></div>
        <div class="ps-side"><div class="pl-canvas">
            <div class="pl-blocks" role="grid" aria-label="physical blocks" style="--columns: ${wide()}"
              data-own></div><svg class="pl-arrows" aria-hidden="true" data-own></svg></div>
          <p class="pl-detail" data-own></p>
          <div class="pl-tables" role="grid" aria-label="block tables" data-own></div>
          <div class="pl-stats">${Object.entries(stats).map(([name, n]) => html`<div class="pl-stat">
            <b data-stat="${name}">${format(n)}</b><span>${name}</span></div>`)}</div></div></div>
      <p class="ps-more" ${hidden ? "" : "hidden"}>Drawn are the first ${plural(recording.drawn, "block")} of
        ${format(recording.num_blocks)}; the counters are of all.</p>
      <div class="ps-air" aria-hidden="true" data-own></div>
      <div class="pl-spoken" aria-live="polite">${playing ? "" : `${position}. ${said}`}</div>`);
    find(".pl-scrubber").value = at;
    paintTexts(shown);
    paintBlocks(shown);
    paintTables(shown.filter(({ blocks }) => blocks.length));
    find(".pl-arrows").innerHTML = escape((state.now.copies ?? []).map(([from, to]) =>
      arrow(...[from, to].map((id) => find(`.pl-block${withData("block", id)}`)))));
    light();
    keepTabStops();
    root.dataset.at = at;
  }
  const wide = () => (recording.drawn <= 8 ? 8 : recording.drawn <= 128 ? 16 : 32);
  const control = (op, text, title) => html`<button class="pl-button" type="button" data-op="${op}" tabindex="-1"
    aria-label="${title ?? text}">${text}</button>`;

  // A node for each item, written only where its template has changed. signs: what an item's template depends on, where
  // that is quicker to say than the template.
  function list(box, items, template, tag = "div", signs = null) {
    items.forEach((item, i) => {
      const node = box.children[i] ?? box.appendChild(document.createElement(tag)), sign = signs?.(item);
      if (signs && node.sign === sign) return;
      node.sign = sign;
      const { inside, ...attributes } = template(item);
      if (tag === "button" && !node.written) node.tabIndex = -1; // arrow keys move among them, see `roving`
      const key = JSON.stringify(attributes);
      if (node.written !== key) for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
      node.written = key;
      if (inside) show(node, inside);
    });
    while (box.children.length > items.length) box.lastChild.remove();
  }

  function paintTexts(texts) {
    const box = find(".ps-texts");
    box.style.setProperty("--rows", texts.length <= 2 ? 9 : texts.length <= 4 ? 4 : 2);
    const tail = texts.length > 8 ? 4 : Infinity; // where there is room for two lines of each, older words need no nodes
    list(box, texts, (text) => {
      const { color, pattern } = lookOf(text);
      return { class: `ps-text ps-${text.state}`, style: `--c: ${color}`, "data-text": text.name, inside: html`
        <p class="ps-head"><i class="pl-swatch pl-hatch pl-p${pattern}"></i><b>${text.name}</b>
          <span>${STATES[text.state] ?? text.state}</span></p>
        <p class="ps-words" tabindex="0">${runs(text).slice(-tail).map(run)}</p>` };
    });
    for (const words of all(".ps-words")) {
      if (words.seen !== words.textContent.length) words.scrollTop = 1e6; // the end of what is written stays in view
      words.seen = words.textContent.length;
    }
  }

  // Neighbouring words of one block, or of none yet, and whether they were asked or written.
  function runs({ name, words, tokens, blocks, was, prompt }) {
    const here = blocks.length ? blocks : was, list = [];
    words.forEach((word, i) => {
      const place = i < tokens || !blocks.length ? Math.floor(i / size()) : null, asked = i < prompt;
      const before = list.at(-1);
      if (before && before.place === place && before.asked === asked) before.words += word;
      else list.push({ place, asked, words: word, id: place === null ? null : here[place] ?? null });
    });
    for (const [i, one] of list.entries()) {
      one.last = one.place !== list[i + 1]?.place; // of its block
      if (one.asked) one.words = one.words.replace(/\n+/g, " ");
      one.held = blocks.length > 0 && one.id !== null;
      one.kept = !blocks.length && one.id !== null && state.kept[one.id] && !state.counts[one.id]
        && state.said.get(one.id)?.name === name;
    }
    return list;
  }
  function run({ place, asked, words, id, held, kept, last }) {
    const css = `ps-run ${held ? `ps-held ps-${place % 2 ? "odd" : "even"}` : kept ? "ps-kept" : id === null ? "ps-new" : ""}`;
    const tag = held && last ? html`<sub>${id}</sub>` : "";
    return html`<span class="${css}${asked ? " ps-asked" : ""}" ${held || kept ? html`data-block="${id}"` : ""}>${words}${tag}</span>`;
  }

  function paintBlocks(texts) {
    const own = ids.map(() => []);
    for (const { name, blocks, tokens, look } of texts) blocks.forEach((id, i) => own[id]?.push(
      { name, ...lookOf({ look }), held: Math.max(0, Math.min(size(), tokens - i * size())) }));
    const { copies = [], hits = [], counts: changed = {} } = state.now;
    const block = (id) => {
      const count = state.counts[id], readers = own[id].map(({ name }) => name);
      const css = classes({ block: true, used: count, empty: !count, shared: count > 1, kept: !count && state.kept[id],
        source: copies.some(([from]) => from === id), destination: copies.some(([, to]) => to === id),
        found: hits.includes(id), fresh: playing && count === 1 && id in changed });
      const bands = own[id].slice(0, 4).map(({ color, pattern, held }) => html`<i class="pl-fill pl-hatch pl-p${pattern}"
        style="--c: ${color}; --empty: ${percent(size() - held, size())}"></i>`);
      return { type: "button", role: "gridcell", class: css, "data-block": id, "data-count": count,
        "data-owners": readers.join(" "), "aria-label": `block ${id}, ${count ? readers.join(" and ") || "held" : "free"}`,
        inside: html`<span class="pl-bands">${bands}</span><span class="pl-id">${id}</span>
          <span class="pl-count">${count || ""}</span>` };
    };
    const rows = Array.from({ length: Math.ceil(ids.length / wide()) }, (_, r) => ids.slice(r * wide(), (r + 1) * wide()));
    const box = find(".pl-blocks");
    list(box, rows, () => ({ class: "pl-row", role: "row" }));
    const [from, to, found] = [copies.map((c) => c[0]), copies.map((c) => c[1]), hits].map((list) => new Set(list));
    const signs = (id) => `${id} ${state.counts[id]} ${state.kept[id]} ${own[id].map((one) => one.name + one.held)} ${
      from.has(id)}${to.has(id)}${found.has(id)}${id in changed}${playing}`;
    rows.forEach((row, r) => list(box.children[r], row, block, "button", signs));
  }

  function paintTables(texts) {
    const box = find(".pl-tables");
    list(box, texts, (text) => {
      const { color, pattern } = lookOf(text);
      return { class: "pl-table", style: `--c: ${color}`, role: "row", "data-sequence": text.name, inside: html`
        <span class="pl-name" role="rowheader"><b>${text.name}</b><i class="pl-swatch pl-hatch pl-p${pattern}"></i>
          <small>${plural(text.tokens, "token")}</small></span>
        <div class="pl-strip" role="presentation" data-own></div>` };
    });
    texts.forEach(({ name, blocks, tokens }, row) => list(box.children[row].querySelector(".pl-strip"), [...blocks.entries()],
      ([i, id]) => ({ type: "button", role: "gridcell", class: "pl-cell", "data-block": id,
        "aria-label": `${name}, logical block ${i}: physical block ${id}`, inside: html`<i style="width:
          ${percent(Math.max(0, Math.min(size(), tokens - i * size())), size())}"></i><span>${id}</span>` }), "button"));
  }

  // ---- words
  function say() {
    const { now, texts } = state, said = [], names = (list) => (list.length > 3 ? plural(list.length, "text") : list.join(" and "));
    if (!at && !Object.keys(now.texts ?? {}).length) return "Nobody is here yet. Every block is free.";
    const who = { came: [], queued: [], back: [], away: [], done: [], dropped: 0 };
    for (const [name, change] of Object.entries(now.texts ?? {})) {
      const was = before?.texts.get(name)?.state;
      if (change.state === "waiting") (was ? who.away : who.queued).push(name);
      else if (change.state === "swapped") who.away.push(name);
      else if (change.state === "running") (was === "swapped" ? who.back : who.came).push(name);
      else if (change.state === "dropped") who.dropped += 1;
      else if (change.state) who.done.push(name);
    }
    if (who.queued.length) said.push(`${names(who.queued)} ${who.queued.length > 1 ? "wait" : "waits"}`);
    if (who.came.length) said.push(`${names(who.came)} ${who.came.length > 1 ? "come" : "comes"} in`);
    if (who.back.length) said.push(`${names(who.back)} ${who.back.length > 1 ? "come" : "comes"} back`);
    if (now.hits?.length) said.push(`${plural(now.hits.length, "block")} found in the cache`);
    for (const [from, to] of (now.copies ?? []).slice(0, 2)) said.push(`block ${from} is copied to ${to}`);
    if (now.evicted?.length) said.push(`${plural(now.evicted.length, "cached block")} given up`);
    if (who.away.length) said.push(`no block is left: ${names(who.away)} ${who.away.length > 1 ? "give" : "gives"} way`);
    if (who.done.length) said.push(`${names(who.done)} ${who.done.length > 1 ? "end, and their" : "ends, and its"} blocks are free`);
    const taken = Object.entries(now.counts ?? {}).filter(([id, n]) => n === 1 && state.said.has(Number(id)));
    if (!said.length && taken.length) {
      const [id] = taken[0], name = state.said.get(Number(id)).name;
      said.push(taken.length > 1 ? `${plural(taken.length, "block")} are taken` : `${name}’s last block is full: it takes block ${id}`);
    }
    const running = [...texts.values()].filter(({ state }) => state === "running");
    if (!said.length) said.push(running.length ? `${names(running.map(({ name }) => name))} ${running.length > 1 ? "write" : "writes"} on` : "all is quiet");
    const line = said.join("; ");
    return `${/^r\d/.test(line) ? line : line[0].toUpperCase() + line.slice(1)}.`;
  }

  function describe(id) {
    if (id === null) return "Point at a word or a block: both light up, and the table’s cell between them.";
    const where = [];
    for (const { name, blocks, tokens, words } of state.texts.values()) {
      const i = blocks.indexOf(Number(id));
      if (i < 0) continue;
      const first = i * size(), stop = Math.min(tokens, first + size());
      where.push(`${name}, tokens ${first}–${Math.max(first, stop - 1)}: “${words.slice(first, stop).join("")}”`);
    }
    if (where.length) return `Block ${id}: ${[...new Set(where)].slice(0, 2).join("; ")}`;
    return state.kept[id] ? `Block ${id} is free, and what it holds is kept for who asks the same.` : `Block ${id} is free.`;
  }

  // ---- what comes from Python
  function changed() {
    const next = model.get("recorded"), same = recording && recording.steps.length <= next.steps.length
      && JSON.stringify(recording.steps[0]) === JSON.stringify(next.steps[0]);
    if (same) film.extend(next);
    else film = replay(next);
    recording = next;
    ids = [...Array(recording.drawn).keys()];
    if (!same) sought();
    else if (state) paint();
  }
  function sought() {
    const step = model.get("step");
    if (state && step === at) return;
    go(step < 0 ? (still && !model.get("live") ? end() : 0) : step);
    play(step < 0 && !still && (end() > 0 || model.get("live")));
  }

  host.append(root);
  changed();
  const listeners = { "change:recorded": changed, "change:step": sought, "change:live": paint };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  const resized = new ResizeObserver(() => paint());
  resized.observe(root);
  return () => {
    clearTimeout(timer);
    resized.disconnect();
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
  };
}

const stage = { render: renderStage };
export default stage;
