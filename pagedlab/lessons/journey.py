"""One request followed through the engine: recorded from a real run, and drawn station by station.

    follow(llm, prompt, params)  ->  moments  ->  draw_journey(moments, name)

Nothing is made up: the scheduler, the prefix cache and the model of `llm` are watched while they
work.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from pagedlab.lessons import drawing as draw
from pagedlab.lessons.colors import NEUTRAL, sequence_color
from pagedlab.sampling import probabilities
from pagedlab.sampling_params import SamplingParams

# Where it stands (column, row), the file that does it, the notebooks that build it.
STATIONS = {
    "arrive": (0, 0, "engine.py", ("08_qwen",)),
    "admit": (1, 0, "scheduler.py", ("09_continuous_batching",)),
    "match": (2, 0, "prefix.py", ("05_prefix_caching",)),
    "schedule": (3, 0, "scheduler.py", ("02_block_pool", "09_continuous_batching")),
    "batch": (4, 0, "batch.py", ("09_continuous_batching",)),
    "forward": (4, 1, "model.py", ("06_online_softmax", "07_the_paged_kernel", "08_qwen")),
    "draw": (3, 1, "sampling.py", ("04_sampling_and_beams",)),
    "append": (2, 1, "outputs.py", ("08_qwen",)),
    "free": (1, 1, "blocks.py", ("02_block_pool",)),
}
SAYS = {
    "arrive": "A text becomes {tokens} token ids. It owns no block yet, and waits.",
    "admit": "There is room: a place in the batch, and blocks enough for the prompt.",
    "match": "An earlier text began with the same words: {found} tokens need not be computed.",
    "schedule": "{tokens} tokens get slots. Slot = block x {size} + place in the block.",
    "batch": "All texts' tokens lie in one row, without padding; where each lies stands beside it.",
    "forward": "Every layer writes keys and values to the slots, and reads the past through the table.",
    "draw": "One token is drawn: {word!r}, id {id}, with a chance of {chance:.0%}.",
    "append": "The token joins the text; its reader sees it. Its key and value come with the next step.",
    "free": "The table is given back. Full blocks stay readable until somebody needs the room.",
}
OURS, OTHERS = sequence_color(0), sequence_color(1)


class Moment(NamedTuple):
    """The request at one station: the step of the engine, what the station holds, and the memory
    then.
    """

    station: str
    step: int
    lines: list[str]
    say: str
    table: list[int]  # its blocks
    words: list[str]  # those that have slots in them
    answer: str
    memory: list[str]  # of each block of the pool: "ours", "other", "kept" or ""


def follow(llm: Any, prompt: str, params: SamplingParams) -> dict[str, Moment]:
    """Add the prompt to an engine without `cuda_graphs`, step until its answer is there, and tell
    what happened.
    """
    moments, seen, step = dict[str, Moment](), dict[str, Any](), 0
    size, blocks = llm.pool.block_size, llm.pool.num_blocks
    table, known, kept, answer = list[int](), list[str](), set[int](), ""

    def word(token: int) -> str:
        return draw.plain(llm.decode([token]))

    def note(station: str, *lines: str, **numbers: object) -> None:
        theirs = {
            block for text in llm.sequences() if text is not mine for block in text.table.block_ids
        }
        whose = {
            **dict.fromkeys(kept, "kept"),
            **dict.fromkeys(theirs, "other"),
            **dict.fromkeys(table, "ours"),
        }
        pool = [whose.get(block, "") for block in range(blocks)]
        moment = Moment(
            station,
            step,
            list(lines),
            SAYS[station].format(**numbers),
            table[:],
            known[:],
            answer,
            pool,
        )
        moments[f"{len(moments) + 1} {station}"] = moment

    def watched(owner: Any, verb: str) -> Any:
        real = getattr(owner, verb)

        def call(*given: Any, **more: Any) -> Any:
            result = real(*given, **more)
            seen[verb] = result.block_ids[:] if verb == "match" else (given, result)
            return result

        return patch.object(owner, verb, call)

    def now_kept() -> set[int]:
        return {block for block in range(blocks) if llm.pool.keeps(block)}

    request, kept = llm.add(prompt, params), now_kept()
    mine = llm.scheduler.waiting[-1].sequences[0]
    ids, waits = mine.token_ids[:], len(llm.scheduler.waiting)
    first = " ".join(map(str, ids[:5]))
    note("arrive", f"{len(ids)} token ids:", f"{first} …", f"in line: {waits}", tokens=len(ids))
    finished = False
    with (
        watched(llm.scheduler, "schedule"),
        watched(llm.prefix_cache, "match"),
        watched(llm.runner, "forward"),
    ):
        while not finished:
            step, was = step + 1, len(table)
            free = llm.pool.num_free
            touched = llm.step()
            plan = seen["schedule"][1]
            b, chunk = next((b, c) for b, c in enumerate(plan.chunks) if c.sequence is mine)
            (batch, *_), logits = seen["forward"]
            pages = batch.block_tables[b].tolist()[: -(-chunk.stop // size)]
            if step == 1:
                others = f"others that run: {len(plan.chunks) - 1}"
                note("admit", f"{free} of {blocks} blocks free", others, "so: come in")
                table = seen["match"]
                known, was = [word(i) for i in ids[: len(table) * size]], len(table)
                held = (
                    f"blocks {', '.join(map(str, table)) or 'none'}",
                    f"hold its first {len(known)} tokens",
                )
                note(
                    "match",
                    *held,
                    f"to compute: {len(ids) - len(known)} of {len(ids)}",
                    found=len(known),
                )
            table, tokens = pages, mine.token_ids[: chunk.stop]
            known = [word(i) for i in tokens]
            start, stop = batch.query_starts[b].item(), batch.query_starts[b + 1].item()
            slots, new = batch.slots[start:stop].tolist(), table[was:]
            named = (
                f"its {'tokens' if stop - start > 1 else 'token'} "
                f"{draw.runs([*range(chunk.start, chunk.stop)])}"
            )
            fresh = f"new blocks: {draw.runs(new)}" if new else "no new block"
            note(
                "schedule",
                named,
                fresh,
                f"slots {draw.runs(slots)}",
                tokens=stop - start,
                size=size,
            )
            rows = [
                f"{c.stop - c.start} of {'this' if c.sequence is mine else 'another'}"
                for c in plan.chunks
            ]
            note("batch", f"{len(batch.token_ids)} tokens in a row", *rows)
            read = f"reads blocks {draw.runs(table)}"
            note(
                "forward",
                f"writes slots {draw.runs(slots)}",
                read,
                f"out: {logits.shape[1]:,} scores",
            )
            drawn, kept = mine.token_ids[-1], now_kept()
            row = [c.sequence for c in plan.chunks].index(mine)
            chances = probabilities(logits[row : row + 1], [params])[0].cpu()
            chances = chances / chances.sum()
            best = [i for i in torch.topk(chances, 3).indices.tolist() if i != drawn]
            shares = [f"{word(i)!r} {chances[i]:.0%}" for i in (drawn, *best)][:3]
            passed = [f"  not:  {share}" for share in shares[1:]]
            note(
                "draw",
                f"drawn: {shares[0]}",
                *passed,
                word=word(drawn),
                id=drawn,
                chance=chances[drawn],
            )
            finished = any(c.request_id == request and c.finished for c in touched)
            answer = llm.decode(mine.token_ids[len(ids) :]).strip()
            more = "the last one" if finished else "its slot: next step"
            note("append", f"+ {word(drawn)!r}", f"{len(mine.token_ids)} tokens now", more)
    gone, table, known = table, [], []
    readable = f"kept, readable: {len(kept.intersection(gone))}"
    note("free", f"blocks {draw.runs(gone)}", readable, f"{llm.pool.num_free} of {blocks} free")
    return moments


def draw_journey(moments: Mapping[str, Moment], name: str, size: int) -> str:
    """The stations, each with what it held last; the one where the request is now stands out.

    Below, its memory.
    """
    names = [*moments]
    at, now = names.index(name), moments[name]
    last = {moments[n].station: moments[n] for n in names[: at + 1]}
    width, high, tops = 204, 114, (46, 198)
    parts = [draw.label(0, 15, f"{now.station} · {now.say}", 14, within=1080, look=draw.BOLD)]
    before = (
        "before the first step" if not now.step else f"step {now.step} of the engine since it came"
    )
    parts.append(draw.label(0, 34, f"Moment {at + 1} of {len(names)}, {before}.", 12, draw.SOFT))
    lefts = [219.0 * column for column in range(5)]
    way = f'fill="none" stroke="{draw.SOFT}" stroke-width="1.5" marker-end="url(#journey-to)"'
    for d in (
        *(f"M{lefts[c] + width} {tops[0] + 57}h12" for c in range(4)),
        f"M{lefts[4] + 102} {tops[0] + high}v35",
        *(f"M{lefts[c]} {tops[1] + 57}h-12" for c in (4, 3, 2)),
        f"M{lefts[2] + 150} {tops[1]}v-19H{lefts[3] + 40}v-16",
    ):
        parts.append(f'<path d="{d}" {way}/>')
    kind = 'viewBox="0 0 6 6" refX="4" refY="3" markerWidth="6" markerHeight="6" orient="auto"'
    parts.append(
        f'<defs><marker id="journey-to" {kind}><path d="M0 0L6 3L0 6z" '
        f'fill="{draw.SOFT}"/></marker></defs>'
    )
    parts.append(draw.label(lefts[2] + 30, tops[1] - 14, "until it is done", 11, draw.SOFT))
    for station, (column, row, file, built) in STATIONS.items():
        x, top, here, held = lefts[column], tops[row], station == now.station, last.get(station)
        look: tuple[Any, ...] = (
            (OURS, 0.22, OURS, 'stroke-width="2.5"') if here else ("var(--well)", 1, draw.LINE)
        )
        drawn = [
            draw.box(x, top, width, high, *look),
            draw.label(x + 10, top + 20, station, 14, look=draw.BOLD),
        ]
        for i, line in enumerate(held.lines[:4] if held else ["…"]):
            drawn.append(
                draw.label(
                    x + 10,
                    top + 40 + 16 * i,
                    line,
                    11.5,
                    draw.INK if here else draw.SOFT,
                    width - 20,
                )
            )
        where = next(
            (n for n in names[at + 1 :] + names[:at] if moments[n].station == station), name
        )
        say = held.say if held else "It has not been here yet."
        say = f"{station}: {say} A click takes the request there."
        parts.append(draw.linked([f"s-{station}"], say, *drawn, goes=f"moment={where}"))
        links = [(file, f"../pagedlab/{file}"), *((name[:2], f"{name}.ipynb") for name in built)]
        left = x + 10.0
        for text, href in links:
            shown = draw.label(
                left, top + high - 9, text, 11.5, "var(--accent)", look="text-decoration:underline"
            )
            parts.append(f'<a href="{href}" target="_blank">{shown}</a>')
            left += draw.wide(text, 11.5) + 10
    parts.append(draw.label(0, tops[1] + 20, "its reader sees", 12, draw.SOFT))
    said = now.answer[:104].replace("\n", " ")
    for i in range(0, len(said), 26):
        parts.append(
            draw.label(0, tops[1] + 42 + 18 * i // 26, said[i : i + 26], 13, look=draw.BOLD)
        )
    y = 350.0
    parts.append(draw.label(0, y - 14, "its table, and the words that lie there", 12, draw.SOFT))
    wide_ = 1080 / max(6, len(now.table))
    for place, block in enumerate(now.table):
        texts = now.words[place * size : (place + 1) * size]
        say = f"block {block}: {' '.join(texts)}"
        parts.append(draw.block_of_words(wide_ * place, y, wide_ - 6, 26, block, texts, OURS, say))
    if not now.table:
        parts.append(draw.label(0, y + 17, "no block", 12.5))
    looks = {"ours": ("this request", OURS), "other": ("another that runs", OTHERS)}
    looks |= {"kept": ("kept for who begins alike", NEUTRAL), "": ("free", "none")}
    whose = {block: looks[kind] for block, kind in enumerate(now.memory) if kind}
    owners = {
        block: (f"b{block}", f"block {block}: {said}", color, 1.0)
        for block, (said, color) in whose.items()
    }
    parts += draw.memory(0, y + 40, 1083, len(now.memory), owners)
    parts += draw.legend(
        0, y + 70, {said: (color, 0.7, draw.LINE) for said, color in looks.values()}
    )
    return draw.svg(1080, y + 90, parts)
