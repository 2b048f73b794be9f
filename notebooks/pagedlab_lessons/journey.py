"""One request followed through the engine, station by station, from a recorded run.

    recording = record(llm, [prompt], [params], ids=True, chances=3)
    run = journey_of(recording, "r2")
    draw_journey(run, "17 sample", block_size)

Nothing is made up: the recording has what scheduler, prefix cache, model and sampler did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab.recipes.trace import Replay, SequenceState
from pagedlab.recipes.trace.format import request_of
from pagedlab_lessons import drawing as draw
from pagedlab_lessons.colors import CACHED, FREE, Look, sequence_color
from pagedlab_lessons.drawing import flow


@dataclass(frozen=True)
class Station:
    """A place that a request passes.

    Args:
        file: the file of the package that does it.
        notebooks: those that build it.
        say: what happens there.
        is_on_gpu: whether its work is kernels, which run on the GPU if there is one.
    """

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
        "engine.py",
        ("08_qwen",),
        "A prompt becomes {tokens} token ids. It has no block yet, and waits.",
    ),
    "admit": Station(
        "scheduler.py",
        ("09_continuous_batching",),
        "It is admitted: the batch has a free place, and the pool has enough blocks.",
    ),
    "match": Station(
        "prefix.py",
        ("05_prefix_caching",),
        "An earlier prompt began with the same words: {found} tokens are cached.",
    ),
    "schedule": Station(
        "scheduler.py",
        ("02_block_pool", "09_continuous_batching"),
        "{slots_for}. Slot = block x {size} + offset in the block.",
    ),
    "batch": Station(
        "batch.py",
        ("09_continuous_batching",),
        "The tokens of all sequences form one row, without padding.",
    ),
    "forward": Station(
        "model.py",
        ("06_online_softmax", "07_the_paged_kernel", "08_qwen"),
        "Every layer writes keys and values to the slots, and reads the past through the table.",
        is_on_gpu=True,
    ),
    "sample": Station(
        "sampling.py",
        ("04_sampling_and_beams",),
        "One token is sampled: {word!r}, id {id}, with a probability of {chance:.0%}.",
        is_on_gpu=True,
    ),
    "append": Station(
        "outputs.py",
        ("08_qwen",),
        "The token is appended and streamed. The next step computes its key and value.",
    ),
    "free": Station(
        "blocks.py",
        ("02_block_pool",),
        "The table is freed. Full blocks stay cached until another request needs them.",
    ),
}
OURS = Look(sequence_color(0))
OTHERS = Look(sequence_color(1))

HEIGHT = 114  # of a station, in pixels
LOOKS_OF_MEMORY = {
    "ours": ("this request", OURS),
    "other": ("another running request", OTHERS),
    "kept": ("cached for prompts with the same beginning", CACHED),
    "": ("free", FREE),
}
SHORT_NAMES = ("this request", "another request", "cached", "free")


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
    lines: Sequence[str]
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
    journey = _Journey(Replay(recording), request, recording["block_size"])
    journey.arrive()
    while journey.sequence.is_unfinished:
        journey.pass_step()
    journey.free()
    return journey.moments


@dataclass
class _Journey:
    """Notes the moments of a request, one after the other."""

    replay: Replay
    request: str
    size: int
    moments: dict[str, Moment] = field(default_factory=dict)
    step: int = 0
    table: list[int] = field(default_factory=list)
    stored: int = 0  # its tokens that have slots
    answer: str = ""
    kept: set[int] = field(default_factory=set)

    @property
    def sequence(self) -> SequenceState:
        """The request's sequence."""
        return self.replay.sequences[self.request]

    @property
    def num_blocks(self) -> int:
        """The blocks of the pool."""
        return int(self.replay.recording["num_blocks"])

    def note(self, station: str, *lines: str, **numbers: object) -> None:
        whose = dict.fromkeys(self.kept, "kept")
        for name, sequence in self.replay.sequences.items():
            if request_of(name) != self.request:
                whose |= dict.fromkeys(sequence.blocks, "other")
        whose |= dict.fromkeys(self.table, "ours")
        moment = Moment(
            station=station,
            step=self.step,
            lines=lines,
            say=STATIONS[station].say.format(**numbers),
            table=self.table,
            words=self.sequence.words[: self.stored],
            answer=self.answer,
            memory=[whose.get(block, "") for block in range(self.num_blocks)],
        )
        self.moments[f"{len(self.moments) + 1} {station}"] = moment

    def arrive(self) -> None:
        """The request waits, and no step has run since it came."""
        self.kept = set(self.replay.kept)
        ids = self.sequence.ids
        waiting = [s for s in self.replay.sequences.values() if s.state == "waiting"]
        self.note(
            "arrive",
            f"{len(ids)} token ids:",
            f"{' '.join(map(str, ids[:5]))} …",
            f"in the queue: {len(waiting)}",
            tokens=len(ids),
        )

    def pass_step(self) -> None:
        """One step of the engine, from the scheduler to the reader."""
        free = self.num_blocks - self.replay.used
        self.step += 1
        self.replay.seek(self.step)
        now = self.replay.now
        table = now.get("held", {}).get(self.request, self.sequence.blocks)
        if self.step == 1:
            self._admit(free)
            self._match(table)
        start, stop = now["computed"][self.request]
        self._schedule(table, start, stop)
        self._batch()
        self._forward(start, stop)
        self.kept = set(self.replay.kept)
        self._sample()
        self._append()

    def free(self) -> None:
        """The answer is complete."""
        gone = self.table
        self.table = []
        self.stored = 0
        self.note(
            "free",
            f"blocks {draw.runs(gone)}",
            f"still cached: {len(self.kept.intersection(gone))}",
            f"{self.num_blocks - self.replay.used} of {self.num_blocks} free",
        )

    def _admit(self, free: int) -> None:
        self.note(
            "admit",
            f"{free} of {self.num_blocks} blocks free",
            f"other running requests: {len(self.replay.now['computed']) - 1}",
            "admitted",
        )

    def _match(self, table: list[int]) -> None:
        """The blocks of the prompt that the prefix cache found."""
        prompt = self.sequence.prompt
        self.stored = self.replay.now["admitted"][self.request]
        self.table = table[: self.stored // self.size]
        self.note(
            "match",
            f"blocks {', '.join(map(str, self.table)) or 'none'}",
            f"hold its first {self.stored} tokens",
            f"to compute: {prompt - self.stored} of {prompt}",
            found=self.stored,
        )

    def _schedule(self, table: list[int], start: int, stop: int) -> None:
        new = table[len(self.table) :]
        touched = table[start // self.size : blocks_for(stop, self.size)]
        self.table = table
        self.stored = stop
        number = stop - start
        self.note(
            "schedule",
            f"its {_counted('token', range(start, stop))}",
            f"new: {_counted('block', new)}" if new else "no new block",
            self._slots_in_words(start, stop),
            f"of {_counted('block', touched)} in its table",
            slots_for=f"{number} tokens get slots" if number > 1 else "1 token gets a slot",
            size=self.size,
        )

    def _batch(self) -> None:
        """The chunks of all sequences, in one row."""
        chunks = []
        number = 0
        for name, (start, stop) in self.replay.now["computed"].items():
            number += stop - start
            whose = "this request" if name == self.request else "another"
            chunks.append(f"{stop - start} of {whose}")
        self.note("batch", f"{number} token{'s' if number > 1 else ''} in a row", *chunks)

    def _forward(self, start: int, stop: int) -> None:
        self.note(
            "forward",
            f"writes {self._slots_in_words(start, stop)}",
            f"reads blocks {draw.runs(self.table)}",
            f"out: {self.replay.now['likely'][self.request]['of']:,} scores",
        )

    def _sample(self) -> None:
        """The token that was sampled, and others that were likely."""
        tokens = self.replay.now["likely"][self.request]["tokens"]
        sampled, *others = (f"{draw.plain(word)!r} {chance:.0%}" for _, word, chance in tokens)
        token, word, chance = tokens[0]
        self.note(
            "sample",
            f"sampled: {sampled}",
            *(f"    not: {other}" for other in others),
            word=draw.plain(word),
            id=token,
            chance=chance,
        )

    def _append(self) -> None:
        self.answer = "".join(self.sequence.new_words).strip()
        self.note(
            "append",
            f"+ {draw.plain(self.sequence.new_words[-1])!r}",
            f"{len(self.sequence.ids)} tokens now",
            "its slot: next step" if self.sequence.is_unfinished else "the last token",
        )

    def _slots_in_words(self, start: int, stop: int) -> str:
        """The slots of its tokens start, ..., stop - 1."""
        slots = []
        for position in range(start, stop):
            entry, offset = divmod(position, self.size)
            slots.append(self.table[entry] * self.size + offset)
        return _counted("slot", slots)


def _counted(what: str, numbers: Sequence[int]) -> str:
    """Numbers with the name of what they count: "slot 29", "slots 29-31"."""
    return f"{what}{'s' if len(numbers) > 1 else ''} {draw.runs(numbers)}"


# From moments to a drawing ------------------------------------------------------------------------


def draw_journey(moments: Mapping[str, Moment], name: str, size: int) -> draw.Drawing:
    """The stations, each with what it showed last; the one where the request is now has an edge.

    Below them is the request's memory.

    Args:
        moments: as `journey_of` returns them.
        name: of one of them.
        size: slots in a block.
    """
    names = list(moments)
    at = names.index(name)
    now = moments[name]
    last = {moments[n].station: moments[n] for n in names[: at + 1]}
    others = names[at + 1 :] + names[:at]
    goes = {
        station: next((n for n in others if moments[n].station == station), name)
        for station in STATIONS
    }
    step = f"step {now.step} of the engine" if now.step else "before the first step"
    since = " since the request arrived" if now.step else ""
    count = f"Moment {at + 1} of {len(names)}, {step}"
    most = max(len(moment.table) for moment in moments.values())
    looks = [(look, said) for said, look in LOOKS_OF_MEMORY.values()]
    short = list(zip((OURS, OTHERS, CACHED, FREE), SHORT_NAMES, strict=True))
    return flow.page(
        f"{now.station}: {now.say}",
        flow.note((f"{count}{since}.", f"{count}.")),
        _Stations(now, last, goes),
        flow.note(("", "its answer so far")),
        flow.Text(("", now.answer.replace("\n", " ")[:76]), 12.5, look=draw.BOLD, lines=(0, 2)),
        flow.note("its block table and the words stored there"),
        _table(now, size, most),
        flow.Pool(_memory(now), columns=(len(now.memory), 8)),
        flow.Legend((looks, short)),
        shown_width=960,
    )


@dataclass(frozen=True)
class _Stations:
    """All stations; a narrow page shows their names, and the lines of the present one.

    Args:
        now: the moment.
        last: the request's last moment at each station.
        goes: of each station, the moment that a click goes to.
    """

    now: Moment
    last: Mapping[str, Moment]
    goes: Mapping[str, str]

    def __call__(self, space: flow.Space) -> flow.Drawn:
        return self._names(space) if space.is_narrow else self._way(space)

    def _way(self, space: flow.Space) -> flow.Drawn:
        """All stations in two rows, with arrows and the answer."""
        grid = flow.grid_in(space.down(6), 5, HEIGHT, gap=15)
        second = grid.moved(0, HEIGHT + 38)
        parts = _arrows(grid, second)
        for number, (name, station) in enumerate(STATIONS.items()):
            place = grid.cell(number) if number < 5 else second.cell(9 - number)
            x, y, *_ = place
            held = self.last.get(name)
            lines = held.lines[:4] if held else ("…",)
            color = draw.INK if name == self.now.station else draw.SOFT
            drawn = [
                draw.label(x + 10, y + 20, name, 14, look=draw.BOLD),
                _runs_on(name, place, 20),
            ]
            drawn += _lines(lines, place, y + 40, color)
            parts += [self._linked(name, place, drawn), *_links(station, x + 10, y + HEIGHT - 9)]
        x, y = second.corner(0)
        answer = flow.Text(self.now.answer.replace("\n", " ")[:104], 13, look=draw.BOLD)
        below = flow.Space(x, y + 8, grid.width, is_narrow=False)
        parts += flow.stack([flow.note("its answer so far"), answer], below).parts
        return flow.Drawn(parts, y + HEIGHT + 16)

    def _names(self, space: flow.Space) -> flow.Drawn:
        """The stations as names, and what the present one shows."""
        grid = flow.grid_in(space, 3, 28, gap=6)
        parts = []
        for number, name in enumerate(STATIONS):
            place = grid.cell(number)
            x, y, *_ = place
            color = draw.INK if name in self.last else draw.SOFT
            look = draw.BOLD if name == self.now.station else ""
            drawn = draw.label(x + 8, y + 18, f"{number + 1} {name}", 12, color, look=look)
            parts.append(self._linked(name, place, [drawn]))
        y = grid.bottom(len(STATIONS)) + 4
        place = draw.Place(space.x, y, space.width, 98)
        parts.append(draw.box(*place, OURS.color, 0.12, OURS.color))
        parts += _lines(self.now.lines[:4], place, y + 19, draw.INK)
        parts += _links(STATIONS[self.now.station], space.x + 10, y + 90)
        parts.append(_runs_on(self.now.station, place, 90))
        return flow.Drawn(parts, y + 104)

    def _linked(self, name: str, place: draw.Place, drawn: list[str]) -> str:
        """A station in its place, which has an edge if the request is there; a click goes to it."""
        look: tuple[Any, ...] = ("var(--well)", 1, draw.LINE)
        if name == self.now.station:
            look = (OURS.color, 0.22, OURS.color, 'stroke-width="2.5"')
        ground = draw.box(*place, *look)
        said = self.last[name].say if name in self.last else "It has not been here yet."
        said += " A click takes the request there."
        return draw.linked([f"s-{name}"], said, ground, *drawn, goes=f"moment={self.goes[name]}")


def _lines(lines: Sequence[str], place: draw.Place, base: float, color: str) -> list[str]:
    """What a station shows, line by line."""
    left, within = place.x + 10, place.width - 20
    return [
        draw.label(left, base + 16.5 * i, line, 11.5, color, within) for i, line in enumerate(lines)
    ]


def _runs_on(name: str, place: draw.Place, down: float) -> str:
    """Where a station's work is done, at the right edge."""
    word = STATIONS[name].runs_on
    left = place.x + place.width - 10 - draw.wide(word, 11.5)
    return draw.label(left, place.y + down, word, 11.5, draw.SOFT)


def _arrows(first: draw.Grid, second: draw.Grid) -> list[str]:
    """The way from station to station: a row from left to right, and one back."""
    width, middle = first.width, HEIGHT / 2
    lefts = [first.corner(column)[0] for column in range(5)]
    paths = [f"M{left + width:.1f} {first.y + middle}h12" for left in lefts[:4]]
    paths.append(f"M{lefts[4] + 102:.1f} {first.y + HEIGHT}v35")
    paths += [f"M{left:.1f} {second.y + middle}h-12" for left in lefts[2:]]
    # the next step
    paths.append(f"M{lefts[2] + 150:.1f} {second.y}v-19H{lefts[3] + 40:.1f}v-16")
    look = f'fill="none" stroke="{draw.SOFT}" stroke-width="1.5" marker-end="url(#journey-to)"'
    parts = [f'<path d="{path}" {look}/>' for path in paths]
    kind = 'viewBox="0 0 6 6" refX="4" refY="3" markerWidth="6" markerHeight="6" orient="auto"'
    head = f'<path d="M0 0L6 3L0 6z" fill="{draw.SOFT}"/>'
    parts.append(f'<defs><marker id="journey-to" {kind}>{head}</marker></defs>')
    parts.append(draw.label(lefts[2] + 30, second.y - 14, "until it ends", 11, draw.SOFT))
    return parts


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


def _table(now: Moment, size: int, most: int) -> flow.Item:
    """The request's blocks, with the words in them."""
    blocks = []
    for entry, number in enumerate(now.table):
        words = now.words[entry * size : (entry + 1) * size]
        owner = draw.Owner("", OURS, len(words) / size)
        blocks.append(
            draw.Block(number, (owner,), words=tuple(draw.Word(draw.plain(word)) for word in words))
        )
    in_a_row = max(6, most)
    return flow.Blocks(blocks, (in_a_row, 2), height=(26, 24), most=most, without="no block")


def _memory(now: Moment) -> list[draw.Block]:
    """The pool, in the looks of the requests that have its blocks."""
    blocks = []
    for number, kind in enumerate(now.memory):
        said, look = LOOKS_OF_MEMORY[kind]
        owners = (draw.Owner(said, look),) if kind in ("ours", "other") else ()
        blocks.append(draw.Block(number, owners, is_cached=kind == "kept"))
    return blocks
