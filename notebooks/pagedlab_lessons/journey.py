"""One request followed through the engine, station by station, from a recorded run.

    recording = record(llm, [prompt], [params], ids=True, chances=3)
    run = journey_of(recording, "r2")
    draw_journey(run, "17 sample", block_size)

Nothing is made up: the recording has what scheduler, prefix cache, model and sampler did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab.recipes.trace import Replay, SequenceState
from pagedlab.recipes.trace.format import request_of
from pagedlab.shipped import results
from pagedlab_lessons import drawing as draw
from pagedlab_lessons.colors import CACHED, FREE, NEUTRAL, Look, sequence_color


@dataclass(frozen=True)
class Station:
    """A place that a request passes.

    Args:
        column: where it is drawn.
        row: where it is drawn.
        file: the file of the package that does it.
        notebooks: those that build it.
        say: what happens there.
        is_on_gpu: whether its work is kernels, which run on the GPU if there is one.
    """

    column: int
    row: int
    file: str
    notebooks: tuple[str, ...]
    say: str
    is_on_gpu: bool = False

    @property
    def runs_on(self) -> str:
        """Where its work is done, in a word."""
        return "GPU" if self.is_on_gpu else "host"


STATIONS = {
    "arrive": Station(
        0,
        0,
        "engine.py",
        ("08_qwen",),
        "A prompt becomes {tokens} token ids. It has no block yet, and waits.",
    ),
    "admit": Station(
        1,
        0,
        "scheduler.py",
        ("09_continuous_batching",),
        "It is admitted: the batch has a free place, and the pool has enough blocks.",
    ),
    "match": Station(
        2,
        0,
        "prefix.py",
        ("05_prefix_caching",),
        "An earlier prompt began with the same words: {found} tokens are cached.",
    ),
    "schedule": Station(
        3,
        0,
        "scheduler.py",
        ("02_block_pool", "09_continuous_batching"),
        "{slots_for}. Slot = block x {size} + offset in the block.",
    ),
    "batch": Station(
        4,
        0,
        "batch.py",
        ("09_continuous_batching",),
        "The tokens of all sequences form one row, without padding.",
    ),
    "forward": Station(
        4,
        1,
        "model.py",
        ("06_online_softmax", "07_the_paged_kernel", "08_qwen"),
        "Every layer writes keys and values to the slots, and reads the past through the table.",
        is_on_gpu=True,
    ),
    "sample": Station(
        3,
        1,
        "sampling.py",
        ("04_sampling_and_beams",),
        "One token is sampled: {word!r}, id {id}, with a probability of {chance:.0%}.",
        is_on_gpu=True,
    ),
    "append": Station(
        2,
        1,
        "outputs.py",
        ("08_qwen",),
        "The token is appended and streamed. The next step computes its key and value.",
    ),
    "free": Station(
        1,
        1,
        "blocks.py",
        ("02_block_pool",),
        "The table is freed. Full blocks stay cached until another request needs them.",
    ),
}
OURS = Look(sequence_color(0))
OTHERS = Look(sequence_color(1))

# The drawing, in pixels.
WIDTH = 1080
STATION_WIDTH = 204
STATION_HEIGHT = 114
COLUMN = 219.0  # from station to station
TOPS = (46, 198)  # of the two rows of stations
MEMORY = 350.0  # where the request's blocks are
TIMES = 468.0  # where the bars of time are
COMPUTES = Look(sequence_color(2))
WAITS = Look(NEUTRAL, "//", is_pale=True)
LOOKS_OF_TIMES = {"the GPU computes": COMPUTES, "the GPU waits": WAITS}
LOOKS_OF_MEMORY = {
    "ours": ("this request", OURS),
    "other": ("another running request", OTHERS),
    "kept": ("cached for prompts with the same beginning", CACHED),
    "": ("free", FREE),
}
TITLE_OF_TABLE = "its block table and the words stored there"
TITLE_OF_TIMES = "a step of 256 sequences on an H200, in milliseconds"
SHORT_TITLE_OF_TIMES = "a step of 256 sequences on an H200, in ms"


@dataclass(frozen=True)
class Moment:
    """The request at one station, and the memory then.

    Args:
        station: a key of `STATIONS`.
        step: of the engine, since the request arrived.
        lines: what the station shows.
        say: what happens there.
        table: the request's blocks.
        words: its words that have slots in them.
        answer: its answer so far.
        memory: of each block of the pool: "ours", "other", "kept" or "".
    """

    station: str
    step: int
    lines: list[str]
    say: str
    table: list[int]
    words: list[str]
    answer: str
    memory: list[str]


# From a recording to moments ----------------------------------------------------------------------


def journey_of(recording: dict[str, Any], request: str) -> dict[str, Moment]:
    """The moments of a request of one sequence, by name, in order: "1 arrive", "2 admit", ...

    Args:
        recording: with words, ids and three chances; it begins when the request waits.
        request: its name, "r2".
    """
    replay = Replay(recording)
    journey = _Journey(request, recording["block_size"], recording["num_blocks"])
    journey.arrive(replay)
    for step in range(1, len(replay)):
        before = replay.used
        replay.seek(step)
        journey.pass_step(replay, recording["num_blocks"] - before)
        if not replay.sequences[request].is_unfinished:
            break
    journey.free(replay)
    return journey.moments


@dataclass
class _Journey:
    """Notes the moments of a request, one after the other."""

    request: str
    size: int
    num_blocks: int
    moments: dict[str, Moment] = field(default_factory=dict)
    step: int = 0
    table: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    answer: str = ""
    kept: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)  # blocks of other sequences

    def note(self, station: str, lines: list[str], **numbers: object) -> None:
        whose = {
            **dict.fromkeys(self.kept, "kept"),
            **dict.fromkeys(self.others, "other"),
            **dict.fromkeys(self.table, "ours"),
        }
        moment = Moment(
            station=station,
            step=self.step,
            lines=lines,
            say=STATIONS[station].say.format(**numbers),
            table=self.table[:],
            words=self.words[:],
            answer=self.answer,
            memory=[whose.get(block, "") for block in range(self.num_blocks)],
        )
        self.moments[f"{len(self.moments) + 1} {station}"] = moment

    def arrive(self, replay: Replay) -> None:
        """The request waits, and no step has run since it came."""
        sequence = replay.sequences[self.request]
        self.kept = set(replay.kept)
        self.others = self._blocks_of_others(replay)
        ids = sequence.ids
        waiting = [s for s in replay.sequences.values() if s.state == "waiting"]
        lines = [
            f"{len(ids)} token ids:",
            f"{' '.join(map(str, ids[:5]))} …",
            f"in the queue: {len(waiting)}",
        ]
        self.note("arrive", lines, tokens=len(ids))

    def pass_step(self, replay: Replay, free: int) -> None:
        """One step of the engine, from the scheduler to the reader.

        Args:
            replay: after the step.
            free: blocks that were free before it.
        """
        self.step += 1
        self.others = self._blocks_of_others(replay)
        sequence = replay.sequences[self.request]
        table = replay.now.get("held", {}).get(self.request, sequence.blocks)
        computed = replay.now["computed"]
        if self.step == 1:
            self._admit(free, len(computed))
            self._match(replay, sequence, table)
        start, stop = computed[self.request]
        self._schedule(sequence, table, start, stop)
        self._batch(computed)
        sampled = replay.now["likely"][self.request]
        self._forward(start, stop, sampled["of"])
        self.kept = set(replay.kept)
        self._sample(sampled["tokens"])
        self._append(sequence, sampled["tokens"][0])

    def free(self, replay: Replay) -> None:
        """The answer is complete."""
        gone = self.table
        self.table = []
        self.words = []
        lines = [
            f"blocks {draw.runs(gone)}",
            f"still cached: {len(self.kept.intersection(gone))}",
            f"{self.num_blocks - replay.used} of {self.num_blocks} free",
        ]
        self.note("free", lines)

    def _admit(self, free: int, running: int) -> None:
        lines = [
            f"{free} of {self.num_blocks} blocks free",
            f"other running requests: {running - 1}",
            "admitted",
        ]
        self.note("admit", lines)

    def _match(self, replay: Replay, sequence: SequenceState, table: list[int]) -> None:
        """The blocks of the prompt that the prefix cache found."""
        found = replay.now["admitted"][self.request]
        self.table = table[: found // self.size]
        self.words = _plain(sequence.words[:found])
        lines = [
            f"blocks {', '.join(map(str, self.table)) or 'none'}",
            f"hold its first {found} tokens",
            f"to compute: {sequence.prompt - found} of {sequence.prompt}",
        ]
        self.note("match", lines, found=found)

    def _schedule(self, sequence: SequenceState, table: list[int], start: int, stop: int) -> None:
        new = table[len(self.table) :]
        touched = table[start // self.size : blocks_for(stop, self.size)]
        self.table = table
        self.words = _plain(sequence.words[:stop])
        lines = [
            f"its {_counted('token', range(start, stop))}",
            f"new: {_counted('block', new)}" if new else "no new block",
            self._slots_in_words(start, stop),
            f"of {_counted('block', touched)} in its table",
        ]
        number = stop - start
        slots_for = f"{number} tokens get slots" if number > 1 else "1 token gets a slot"
        self.note("schedule", lines, slots_for=slots_for, size=self.size)

    def _batch(self, computed: dict[str, list[int]]) -> None:
        """The chunks of all sequences, in one row."""
        number = sum(stop - start for start, stop in computed.values())
        lines = [f"{number} token{'s' if number > 1 else ''} in a row"]
        for name, (start, stop) in computed.items():
            lines.append(
                f"{stop - start} of {'this request' if name == self.request else 'another'}"
            )
        self.note("batch", lines)

    def _forward(self, start: int, stop: int, vocabulary: int) -> None:
        lines = [
            f"writes {self._slots_in_words(start, stop)}",
            f"reads blocks {draw.runs(self.table)}",
            f"out: {vocabulary:,} scores",
        ]
        self.note("forward", lines)

    def _sample(self, tokens: list[Any]) -> None:
        """The token that was sampled, and others that were likely."""
        shares = [f"{draw.plain(word)!r} {chance:.0%}" for _, word, chance in tokens]
        lines = [f"sampled: {shares[0]}"]
        for share in shares[1:]:
            lines.append(f"    not: {share}")
        token, word, chance = tokens[0]
        self.note("sample", lines, word=draw.plain(word), id=token, chance=chance)

    def _append(self, sequence: SequenceState, sampled: list[Any]) -> None:
        self.answer = "".join(sequence.new_words).strip()
        more = "its slot: next step" if sequence.is_unfinished else "the last token"
        lines = [f"+ {draw.plain(sampled[1])!r}", f"{len(sequence.ids)} tokens now", more]
        self.note("append", lines)

    def _slots_in_words(self, start: int, stop: int) -> str:
        """The slots of its tokens start, ..., stop - 1."""
        slots = []
        for position in range(start, stop):
            entry, offset = divmod(position, self.size)
            slots.append(self.table[entry] * self.size + offset)
        return _counted("slot", slots)

    def _blocks_of_others(self, replay: Replay) -> set[int]:
        """The blocks of other requests' sequences."""
        blocks = set()
        for name, sequence in replay.sequences.items():
            if request_of(name) != self.request:
                blocks.update(sequence.blocks)
        return blocks


def _counted(what: str, numbers: Sequence[int]) -> str:
    """Numbers with the name of what they count: "slot 29", "slots 29-31"."""
    return f"{what}{'s' if len(numbers) > 1 else ''} {draw.runs(numbers)}"


def _plain(words: list[str]) -> list[str]:
    return [draw.plain(word) for word in words]


# From moments to a drawing ------------------------------------------------------------------------


def draw_journey(moments: Mapping[str, Moment], name: str, size: int) -> draw.Drawing:
    """The stations, each with what it showed last; the one where the request is now has an edge.

    Below them are the request's memory, and how long a step takes on an H200.

    Args:
        moments: as `journey_of` returns them.
        name: of one of them.
        size: slots in a block.
    """
    names = list(moments)
    at = names.index(name)
    now = moments[name]
    last = {moments[n].station: moments[n] for n in names[: at + 1]}
    parts = [draw.label(0, 15, f"{now.station} · {now.say}", 14, within=WIDTH, look=draw.BOLD)]
    count = f"Moment {at + 1} of {len(names)}"
    before = "before the first step"
    step = f"step {now.step} of the engine" if now.step else before
    since = f"{step} since the request arrived" if now.step else before
    parts.append(draw.label(0, 34, f"{count}, {since}.", 12, draw.SOFT))
    parts += _arrows()
    others = names[at + 1 :] + names[:at]
    targets = {
        station: next((n for n in others if moments[n].station == station), name)
        for station in STATIONS
    }
    for station in STATIONS:
        parts += _station(station, last.get(station), station == now.station, targets[station])
    parts += _answer(now.answer)
    parts.append(draw.label(0, MEMORY - 14, TITLE_OF_TABLE, 12, draw.SOFT))
    grid = draw.Grid.within(0, MEMORY, WIDTH, max(6, len(now.table)), 26, 6)
    parts += _table(now, size, grid)
    grid = draw.Grid.within(0, MEMORY + 40, WIDTH, len(now.memory), 19, 3)
    parts += _memory(now, grid)
    parts += draw.legend(0, MEMORY + 70, dict(LOOKS_OF_MEMORY.values()))
    parts.append(draw.label(0, TIMES - 8, TITLE_OF_TIMES, 12, draw.SOFT))
    parts += draw.legend(400, TIMES - 20, LOOKS_OF_TIMES)
    parts += _times(TIMES + 3, 180, WIDTH)
    headline = f"{now.station}: {now.say}"
    wide = draw.svg(WIDTH, TIMES + 44, parts, headline, shown_width=960)
    count = f"{count}, {step}."
    most = max(len(moment.table) for moment in moments.values())
    return draw.Drawing(wide, _narrow_journey(last, now, targets, size, most, headline, count))


def _narrow_journey(
    last: Mapping[str, Moment],
    now: Moment,
    targets: Mapping[str, str],
    size: int,
    most: int,
    headline: str,
    count: str,
) -> str:
    """The names of the stations, what the present one shows and where it runs, and memory below.

    Args:
        last: the request's last moment at each station.
        now: the moment.
        targets: of each station, the moment that a click goes to.
        size: slots in a block.
        most: blocks of the request at any moment.
        headline: of the drawing.
        count: which moment it is.
    """
    parts = [draw.label(0, 11, count, 11, draw.SOFT)]
    grid = draw.Grid.within(0, 20, draw.NARROW, 3, 28, 6)
    for number, name in enumerate(STATIONS):
        x, y = grid.corner(number)
        place = draw.Grid(x, y, 1, grid.width, grid.height)
        parts.append(_chip(name, number + 1, place, name == now.station, targets[name], last))
    y = grid.bottom(len(STATIONS)) + 4
    parts.append(draw.box(0, y, draw.NARROW, 98, OURS.color, 0.12, OURS.color))
    for i, line in enumerate(now.lines[:4]):
        parts.append(draw.label(10, y + 19 + 17 * i, line, 12, within=draw.NARROW - 20))
    station = STATIONS[now.station]
    parts += _links(station, 10, y + 90)
    left = draw.NARROW - 10 - draw.wide(station.runs_on, 11.5)
    parts.append(draw.label(left, y + 90, station.runs_on, 11.5, draw.SOFT))
    y += 116
    parts.append(draw.label(0, y, "its answer so far", 11, draw.SOFT))
    said = now.answer.replace("\n", " ")[:80]
    for i, line in enumerate(wrap(said, 38)[:2]):
        parts.append(draw.label(0, y + 18 + 17 * i, line, 12.5, look=draw.BOLD))
    y += 58
    parts.append(draw.label(0, y, TITLE_OF_TABLE, 11, draw.SOFT))
    grid = draw.Grid.within(0, y + 8, draw.NARROW, 2, 24, 4)
    parts += _table(now, size, grid)
    y = grid.bottom(most) + 4
    grid = draw.Grid.within(0, y, draw.NARROW, 8, 19, 3)
    parts += _memory(now, grid)
    y = grid.bottom(len(now.memory)) + 3
    short = {"this request": OURS, "another request": OTHERS, "cached": CACHED, "free": FREE}
    parts += draw.legend(0, y, short, draw.NARROW)
    y += 58
    parts.append(draw.label(0, y, SHORT_TITLE_OF_TIMES, 11, draw.SOFT))
    parts += draw.legend(0, y + 6, LOOKS_OF_TIMES, draw.NARROW)
    parts += _times(y + 28, 160, draw.NARROW)
    return draw.narrow_svg(y + 66, parts, headline)


def _chip(
    name: str,
    number: int,
    place: draw.Grid,
    is_here: bool,
    goes: str,
    last: Mapping[str, Moment],
) -> str:
    """A station as its name alone.

    Args:
        number: of the station, from 1 on.
        place: its cell.
        is_here: whether the request is there now.
        goes: the moment that a click goes to.
        last: the request's last moment at each station.
    """
    look: tuple[Any, ...] = ("var(--well)", 1, draw.LINE)
    if is_here:
        look = (OURS.color, 0.22, OURS.color, 'stroke-width="2.5"')
    x, y = place.x, place.y
    color = draw.INK if name in last else draw.SOFT
    style = draw.BOLD if is_here else ""
    drawn = [
        draw.box(x, y, place.width, place.height, *look),
        draw.label(x + 8, y + 18, f"{number} {name}", 12, color, look=style),
    ]
    return draw.linked([f"s-{name}"], _said_of(last.get(name)), *drawn, goes=f"moment={goes}")


def _said_of(held: Moment | None) -> str:
    """What is said of a station that is pointed at."""
    said = held.say if held else "It has not been here yet."
    return f"{said} A click takes the request there."


def _arrows() -> list[str]:
    """The way from station to station."""
    lefts = [COLUMN * column for column in range(5)]
    top, bottom = TOPS
    middle = STATION_HEIGHT // 2
    paths = [f"M{lefts[column] + STATION_WIDTH} {top + middle}h12" for column in range(4)]
    paths.append(f"M{lefts[4] + 102} {top + STATION_HEIGHT}v35")
    paths += [f"M{lefts[column]} {bottom + middle}h-12" for column in (4, 3, 2)]
    paths.append(f"M{lefts[2] + 150} {bottom}v-19H{lefts[3] + 40}v-16")  # the next step
    look = f'fill="none" stroke="{draw.SOFT}" stroke-width="1.5" marker-end="url(#journey-to)"'
    parts = [f'<path d="{path}" {look}/>' for path in paths]
    kind = 'viewBox="0 0 6 6" refX="4" refY="3" markerWidth="6" markerHeight="6" orient="auto"'
    head = f'<path d="M0 0L6 3L0 6z" fill="{draw.SOFT}"/>'
    parts.append(f'<defs><marker id="journey-to" {kind}>{head}</marker></defs>')
    parts.append(draw.label(lefts[2] + 30, bottom - 14, "until it ends", 11, draw.SOFT))
    return parts


def _station(name: str, held: Moment | None, is_here: bool, goes: str) -> list[str]:
    """A station with what it showed last, host or GPU, and links to its file and notebooks.

    Args:
        held: the request's last moment there.
        is_here: whether the request is there now.
        goes: the moment that a click goes to.
    """
    station = STATIONS[name]
    x = COLUMN * station.column
    top = TOPS[station.row]
    look: tuple[Any, ...] = ("var(--well)", 1, draw.LINE)
    if is_here:
        look = (OURS.color, 0.22, OURS.color, 'stroke-width="2.5"')
    drawn = [
        draw.box(x, top, STATION_WIDTH, STATION_HEIGHT, *look),
        draw.label(x + 10, top + 20, name, 14, look=draw.BOLD),
    ]
    left = x + STATION_WIDTH - 10 - draw.wide(station.runs_on, 11.5)
    drawn.append(draw.label(left, top + 20, station.runs_on, 11.5, draw.SOFT))
    color = draw.INK if is_here else draw.SOFT
    lines = held.lines[:4] if held else ["…"]
    for i, line in enumerate(lines):
        y = top + 40 + 16 * i
        drawn.append(draw.label(x + 10, y, line, 11.5, color, STATION_WIDTH - 20))
    linked = draw.linked([f"s-{name}"], _said_of(held), *drawn, goes=f"moment={goes}")
    return [linked, *_links(station, x + 10.0, top + STATION_HEIGHT - 9)]


def _links(station: Station, left: float, y: float) -> list[str]:
    """Links to the file that does it, and to the notebooks that build it."""
    targets = {station.file: f"../pagedlab/{station.file}"}
    for notebook in station.notebooks:
        targets[notebook[:2]] = f"{notebook}.ipynb"
    parts = []
    for text, target in targets.items():
        look = "text-decoration:underline"
        shown = draw.label(left, y, text, 11.5, "var(--accent)", look=look)
        parts.append(f'<a href="{target}" target="_blank">{shown}</a>')
        left += draw.wide(text, 11.5) + 10
    return parts


def _answer(answer: str) -> list[str]:
    """The answer as its reader sees it, in lines of 26 letters."""
    top = TOPS[1]
    parts = [draw.label(0, top + 20, "its answer so far", 12, draw.SOFT)]
    said = answer[:104].replace("\n", " ")
    for start in range(0, len(said), 26):
        y = top + 42 + 18 * start // 26
        parts.append(draw.label(0, y, said[start : start + 26], 13, look=draw.BOLD))
    return parts


def _table(now: Moment, size: int, grid: draw.Grid) -> list[str]:
    """The request's blocks, with the words in them."""
    blocks = []
    for entry, number in enumerate(now.table):
        words = now.words[entry * size : (entry + 1) * size]
        owner = draw.Owner("", OURS, len(words) / size)
        block = draw.Block(number, (owner,), words=tuple(map(draw.Word, words)))
        blocks.append(block)
    if not now.table:
        return [draw.label(0, grid.y + 17, "no block", 12.5)]
    return draw.slots(blocks, grid)


def _memory(now: Moment, grid: draw.Grid) -> list[str]:
    """The pool, in the looks of the requests that have its blocks."""
    blocks = []
    for number, kind in enumerate(now.memory):
        said, look = LOOKS_OF_MEMORY[kind]
        owners = (draw.Owner(said, look),) if kind in ("ours", "other") else ()
        block = draw.Block(number, owners, is_cached=kind == "kept")
        blocks.append(block)
    return draw.pool(blocks, grid)


def _times(top: float, left: float, width: float) -> list[str]:
    """The recorded time of a step, before and after the changes of notebook 10.

    Args:
        top: in pixels.
        left: where the bars begin, in pixels.
        width: of names and bars, in pixels.
    """
    measured = {
        row["rung"]: row["a step"] for row in results("h200_serving")["rows"] if "a step" in row
    }
    rungs = {"before this notebook": measured["ragged"], "at its end": measured["all"]}
    pitch = (width - left - 60) / max(step["wall ms"] for step in rungs.values())
    parts = []
    for row, (name, step) in enumerate(rungs.items()):
        y = top + 20 * row
        wall, kernels = step["wall ms"], step["kernels ms"]
        say = f"{name}: a step takes {wall:.1f} ms; the GPU computes for {kernels:.1f} ms of it"
        drawn = [
            draw.box(0, y, width, 16, draw.LINE, 0),  # so that the whole row can be pointed at
            draw.label(0, y + 12, name, 12.5),
            draw.shape(left, y, pitch * kernels, 16, COMPUTES),
            draw.shape(left + pitch * kernels, y, pitch * (wall - kernels), 16, WAITS),
            draw.label(left + pitch * wall + 8, y + 12, f"{wall:.1f}", 12.5, look=draw.BOLD),
        ]
        parts.append(draw.linked([f"time-{row}"], say, *drawn))
    return parts
