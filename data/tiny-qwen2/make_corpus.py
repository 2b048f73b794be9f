"""Make the corpus of tiny-qwen2: a larger Qwen writes, this script filters and puts documents together.

python make_corpus.py write GENERATOR raw.jsonl.gz --minutes 4   # on a GPU; GENERATOR: a folder or hub id
python make_corpus.py assemble raw.jsonl.gz corpus             # on a CPU
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import queue
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import plans
import recall
from plans import Plan

SYSTEM = "You write plain, simple, correct English."
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def prompt_stream(
    tokenizer: Any, seed: int, longest: int, size: int = 4096
) -> Iterator[list[tuple[Plan, list[int], float]]]:
    """Chunks of plans with their prompt's ids and a temperature, made ahead of time by a thread."""
    chunks: queue.Queue[list[tuple[Plan, list[int], float]]] = queue.Queue(maxsize=6)

    def fill() -> None:
        rng, source = random.Random(seed + 1), plans.requests(seed)
        while True:
            chunk = [next(source) for _ in range(size)]
            texts = [
                f"{START}system\n{SYSTEM}{STOP}\n{START}user\n{plan.prompt}{STOP}\n{START}assistant\n{plan.prefix}"
                for plan in chunk
            ]
            ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
            chunks.put(
                [
                    (plan, i, 0.65 if plan.kind == "free" else rng.choice((0.7, 0.9)))
                    for plan, i in zip(chunk, ids, strict=True)
                    if len(i) < longest
                ]
            )

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield chunks.get()


def write(args: argparse.Namespace) -> None:
    """Run the generator for `args.minutes` and store what it wrote, unfiltered."""
    from writer import Writer  # needs torch, and a GPU to be of use

    writer = Writer(args.generator, args.rows, args.length, args.device, top_k=50, top_p=args.top_p)
    stream = prompt_stream(writer.tokenizer, args.seed, args.length - 100)
    started, texts, tokens = time.monotonic(), 0, 0
    finished: queue.Queue[list[tuple[Plan, list[int], bool]]] = queue.Queue()

    def store() -> None:
        with gzip.open(args.out, "wt", encoding="utf-8", compresslevel=3) as file:
            while batch := finished.get():  # an empty list ends it
                decoded = writer.tokenizer.batch_decode(
                    [ids for _, ids, _ in batch], skip_special_tokens=True
                )
                for (plan, _, complete), text in zip(batch, decoded, strict=True):
                    record = asdict(plan) | {"text": plan.prefix + text, "complete": complete}
                    del record["prompt"]
                    file.write(json.dumps(record) + "\n")

    storing = threading.Thread(target=store)
    storing.start()
    batch: list[tuple[Plan, list[int], bool]] = []
    for item in writer.run(stream, args.minutes * 60):
        batch.append(item)
        texts, tokens = texts + 1, tokens + len(item[1])
        if len(batch) == 2048:
            finished.put(batch)
            batch = []
    finished.put(batch)
    finished.put([])
    storing.join()
    seconds = time.monotonic() - started
    print(
        f"{texts} texts, {tokens} written tokens in {seconds:.0f} s: {tokens / seconds:.0f} tokens/s"
    )


# kind: (share of the source's words that must be there, share of words that may be new)
FIDELITY = {
    "story": (0.75, 0.2),
    "fact": (0.5, 0.25),
    "thing": (0.5, 0.35),
    "scene": (0.6, 0.25),
    "talk": (0.5, 0.4),
}
JUNK = re.compile(
    r"\b(rewrit\w*|paragraph|sentences?|in other words|summary|certainly|as an ai|here is a|here's a|the story is"
    r"|children's story|assistant|the text above|version|instructions:|keep the|sure[,!])",
    re.IGNORECASE,
)
LIST = re.compile(r"^\s*(\d+[.):]|-|\()", re.MULTILINE)


def stems(text: str) -> set[str]:
    """Beginnings of the longer words, a rough stand-in for their meaning."""
    return {word[:5] for word in re.findall(r"[a-z]+", text.lower()) if len(word) > 3}


def new_names(text: str, source: str) -> set[str]:
    """Words with a capital inside a sentence of `text` that the source does not have."""
    inner = re.findall(r"(?<=[a-z,;] )[A-Z][a-z]+", text)
    return {word for word in inner if word not in source and word.lower() not in source}


def twice(name: str, text: str) -> bool:
    """Whether one sentence has the name two times, as garbled ones often do."""
    return re.search(rf"\b{name}\b[^.!?]*\b{name}\b", text) is not None


def clean(record: dict[str, Any]) -> str | None:
    """The usable part of a written text, or None."""
    text = re.sub(r" *\n\s*", "\n\n" if record["kind"] != "talk" else "\n", record["text"].strip())
    text = re.sub(r" {2,}", " ", text)
    ends = [m.end() for m in re.finditer(r"[.!?][\"']?(?=\s|$)", text)]
    if not ends or (not record["complete"] and ends[-1] < 0.6 * len(text)):
        return None
    text = text[: ends[-1]]
    if record["kind"] != "talk" and text.count("\n\n") > 3:  # a paragraph for each sentence
        text = text.replace("\n\n", " ")
    words = text.lower().split()
    chatter = JUNK.search(text)
    if (
        len(words) < 8
        or (chatter and chatter[0].lower() not in record["source"].lower())
        or LIST.search(text)
        or text.count('"') % 2
    ):
        return None
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    said = [s for s in re.split(r"(?<=[.!?])\s+", text.lower()) if len(s) > 15]
    if any(a == b for a, b in itertools.pairwise(words)) and "knock" not in words:
        return None
    if len(set(grams)) < 0.85 * len(grams) or len(set(said)) < len(said):
        return None
    if record["kind"] == "free":
        return text if 12 <= len(words) <= 130 and len(set(grams)) > 0.95 * len(grams) else None
    source = record["source"] + " " + record["prefix"] + " " + " ".join(record["names"].values())
    kept, fresh = FIDELITY[record["kind"]]
    have, want = stems(text), stems(record["source"])
    known = want | stems(record["prefix"] + " " + record["asks"][0])
    length = len(words) / len(record["source"].split())
    if (
        len(have & want) < kept * len(want)
        or len(have - known) > fresh * len(have)
        or not 0.4 < length < 1.9
    ):
        return None
    if record["kind"] in ("story", "fact", "thing", "scene") and new_names(text, source):
        return None
    names = (
        set(re.findall(r"\b[A-Z][a-z]+\b", record["source"]))
        if record["kind"] == "story"
        else set()
    )
    if any(twice(name, text) and not twice(name, record["source"]) for name in names):
        return None
    return text


def turn(role: str, text: str) -> str:
    """One turn in ChatML."""
    return f"{START}{role}\n{text}{STOP}\n"


SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant who answers in plain words.",
    "You answer questions in a few short sentences.",
    "You tell stories and explain things to children.",
)


class Assembler:
    """Puts texts together into documents: prose and chats, short and long, and questions on earlier text."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def ask(self, piece: dict[str, Any]) -> str:
        """One of the questions that lead to the text; some are typed carelessly."""
        ask = str(self.rng.choice(piece["asks"]))
        if self.rng.random() < 0.08:
            ask = ask.rstrip(".?!")
        if self.rng.random() < 0.08:
            ask = ask[0].lower() + ask[1:]
        return ask

    def system(self, share: float = 0.3) -> str:
        """A system turn, sometimes."""
        return turn("system", self.rng.choice(SYSTEMS)) if self.rng.random() < share else ""

    def exchange(self, piece: dict[str, Any]) -> str:
        """A question and its answer."""
        return turn("user", self.ask(piece)) + turn("assistant", piece["text"])

    def on_story(self, piece: dict[str, Any], chat: bool) -> str:
        """Questions on the names in a story."""
        pairs = recall.about_story(piece["names"], self.rng) if piece["kind"] == "story" else []
        if not all(name in piece["text"] for name in piece["names"].values()):
            pairs = []  # the generator has left somebody out
        if chat:
            return "".join(turn("user", q) + turn("assistant", a) for q, a in pairs)
        return "".join(f"\n\nQuestion: {q}\nAnswer: {a}" for q, a in pairs)

    def recall_prose(self, pieces: list[dict[str, Any]]) -> str:
        """Facts, then other texts, then questions on the facts, as prose."""
        facts = recall.any_recall(self.rng)
        between = [piece["text"] for piece in pieces]
        pairs = self.rng.sample(facts.questions, min(len(facts.questions), self.rng.randint(1, 4)))
        return "\n\n".join(
            [facts.text(), *between, *[f"Question: {q}\nAnswer: {a}" for q, a in pairs]]
        )

    def recall_chat(self, pieces: list[dict[str, Any]]) -> str:
        """Facts from the user or in the instructions, other talk, then questions on the facts."""
        kind = self.rng.random()
        if kind < 0.3:
            facts = recall.house(self.rng)
            text = turn("system", facts.text())
        elif kind < 0.55:
            facts = recall.speaker(self.rng)
            if self.rng.random() < 0.3:
                question, answer = self.rng.choice(facts.questions)
                text = (
                    self.system()
                    + turn("user", f"{facts.text()} {question}")
                    + turn("assistant", answer)
                )
                return text + "".join(self.exchange(piece) for piece in pieces)
            text = self.system() + turn("user", "Hello! " * self.rng.randint(0, 1) + facts.text())
            text += turn(
                "assistant", f"Hello {facts.facts[0].split()[-1].rstrip('.')}! How can I help you?"
            )
        else:
            facts = recall.any_recall(self.rng)
            pairs = self.rng.sample(
                facts.questions, min(len(facts.questions), self.rng.randint(1, 3))
            )
            first = (
                f"{facts.text()} {pairs[0][0]}"
                if self.rng.random() < 0.6
                else f"{facts.text()}\n\n{pairs[0][0]}"
            )
            text = self.system() + turn("user", first) + turn("assistant", pairs[0][1])
            text += "".join(self.exchange(piece) for piece in pieces[:1])
            return text + "".join(turn("user", q) + turn("assistant", a) for q, a in pairs[1:])
        pairs = self.rng.sample(facts.questions, min(len(facts.questions), self.rng.randint(1, 3)))
        middle = [self.exchange(piece) for piece in pieces]
        later = [turn("user", q) + turn("assistant", a) for q, a in pairs]
        mixed = middle + later
        self.rng.shuffle(mixed)
        return text + "".join(mixed)

    def documents(self, pieces: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
        """Every piece is used once, in a document of a random kind; yields (kind, text)."""
        rng = self.rng
        kinds = {
            "prose": 34,
            "chat": 38,
            "long chat": 9,
            "long prose": 6,
            "recall prose": 6,
            "recall chat": 7,
        }
        at = 0
        while at < len(pieces):
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            count = {
                "prose": 1,
                "chat": 1,
                "long chat": rng.randint(2, 7),
                "long prose": rng.randint(2, 6),
            }.get(kind, rng.randint(0, 3))
            taken, at = pieces[at : at + count], at + count
            if kind == "prose":
                text = taken[0]["text"] + (
                    self.on_story(taken[0], chat=False) if rng.random() < 0.25 else ""
                )
                if rng.random() < {
                    "fact": 0.35,
                    "thing": 0.35,
                    "story": 0.1,
                    "small talk": 0.5,
                    "note": 0.1,
                }.get(taken[0]["kind"], 0):
                    text = (
                        self.ask(taken[0]) + rng.choice([" ", "\n", "\n\n"]) + text
                    )  # a question without a template
                yield kind, text
            elif kind == "chat":
                text = self.system() + self.exchange(taken[0])
                yield (
                    kind,
                    text + (self.on_story(taken[0], chat=True) if rng.random() < 0.25 else ""),
                )
            elif kind == "long chat":
                text = self.system()
                for piece in taken:
                    text += self.exchange(piece) + (
                        self.on_story(piece, chat=True) if rng.random() < 0.3 else ""
                    )
                yield kind, text
            elif kind == "long prose":
                story = [piece for piece in taken if piece["kind"] == "story"][:1]
                questions = (
                    self.on_story(story[0], chat=False) if story and rng.random() < 0.5 else ""
                )
                yield kind, "\n\n".join(piece["text"] for piece in taken) + questions
            else:
                yield (
                    kind,
                    self.recall_prose(taken) if kind == "recall prose" else self.recall_chat(taken),
                )


def not_said(reason: str, text: str) -> list[str]:
    """The sentences of `text` that do not say once more what `reason` says."""
    said = stems(reason)
    return [
        s
        for s in re.split(r"(?<=[.!?]) ", text)
        if len(stems(s) & said) < 0.5 * min(len(stems(s)), len(said))
    ]


def by_hand(count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Pieces that are the hand-written sources themselves: plans of stories filled in, facts, scenes, small talk."""
    makers = {
        plans.story: 50,
        plans.fact: 20,
        plans.thing: 6,
        plans.scene: 8,
        plans.note: 4,
        plans.letter: 3,
        plans.talk: 3,
        plans.small_talk: 6,
    }
    for maker in rng.choices(list(makers), list(makers.values()), k=count):
        plan = maker(rng)
        text, asks = f"{plan.prefix} {plan.source}".strip(), plan.asks
        reason = plans.REASONS.get(asks[0])
        if plan.kind == "fact" and reason and rng.random() < 0.5:
            text = rng.choice([reason, " ".join([reason, *not_said(reason, text)])])
        sentences = re.split(r"(?<=[.!?]) ", text)
        if plan.kind in ("fact", "thing") and len(sentences) > 2 and rng.random() < 0.2:
            short = rng.choice([1, 2])
            text = " ".join(sentences[:short])
            how = "one sentence" if short == 1 else "two sentences"
            asks = [
                f"{plan.asks[0]} Answer in {how}.",
                f"In {how}: {plan.asks[0]}",
                f"{plan.asks[0]} Keep it short.",
            ]
        yield {"kind": plan.kind, "text": text, "asks": asks, "names": plan.names}


def shard(job: tuple[int, list[dict[str, Any]], int, Path]) -> tuple[int, int, str]:
    """Write one file of documents: these pieces and as many hand-written ones; return documents, characters, digest."""
    number, pieces, count, path = job
    rng = random.Random(number)
    pieces = pieces + list(by_hand(count, rng))
    rng.shuffle(pieces)
    documents = [
        json.dumps({"kind": kind, "text": text}) + "\n"
        for kind, text in Assembler(rng).documents(pieces)
    ]
    rng.shuffle(documents)
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=2) as file:
        file.writelines(documents)
    return (
        len(documents),
        sum(map(len, documents)),
        hashlib.sha256("".join(documents).encode()).hexdigest(),
    )


def assemble(args: argparse.Namespace) -> None:
    """Filter the written texts, add hand-written ones, and write `args.shards` files of documents and a held-out one.

    A shard has a random part of the written texts, each time asked for and combined in another way, and hand-written
    plans filled in afresh. Of the written texts one in fifty goes to the held-out file only.
    """
    rng = random.Random(args.seed)
    pieces: list[dict[str, Any]] = []
    seen: set[str] = set()
    counts: dict[str, list[int]] = {}
    with gzip.open(args.raw, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            count = counts.setdefault(record["kind"], [0, 0])
            count[0] += 1
            text = clean(record)
            if text and text not in seen and text != record["source"]:
                seen.add(text)
                count[1] += 1
                pieces.append(
                    {
                        "kind": record["kind"],
                        "text": text,
                        "asks": record["asks"],
                        "names": record["names"],
                    }
                )
    rng.shuffle(pieces)
    held, pieces = pieces[: len(pieces) // 50], pieces[len(pieces) // 50 :]
    args.out.mkdir(parents=True, exist_ok=True)
    part_size = int(args.part * len(pieces))
    jobs = [
        (1000, held, len(held) * args.by_hand // max(1, part_size), args.out / "heldout.jsonl.gz")
    ]
    for number in range(args.shards):
        part = rng.sample(pieces, part_size)
        jobs.append((number, part, args.by_hand, args.out / f"train-{number:02}.jsonl.gz"))
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(shard, jobs))
    summary = {
        "written": {kind: {"texts": a, "kept": b} for kind, (a, b) in counts.items()},
        "pieces_by_the_generator": len(pieces),
        "of_them_in_each_shard": part_size,
        "pieces_by_hand_in_each_shard": args.by_hand,
        "heldout_pieces_by_the_generator": len(held),
        "files": [
            {"name": job[3].name, "documents": n, "characters": size, "sha256": digest}
            for job, (n, size, digest) in zip(jobs, results, strict=True)
        ],
    }
    text = json.dumps(summary, indent=1)
    print(text)
    (args.out / "summary.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("write", help="let the generator write")
    one.add_argument("generator", help="Hugging Face folder or id of the model that writes")
    one.add_argument("out", type=Path)
    one.add_argument("--minutes", type=float, default=4.0)
    one.add_argument("--rows", type=int, default=4096)
    one.add_argument(
        "--length", type=int, default=464, help="prompt and answer together, in tokens"
    )
    one.add_argument("--top-p", type=float, default=0.95)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--device", default="cuda")
    one.set_defaults(call=write)
    two = commands.add_parser("assemble", help="filter and put documents together")
    two.add_argument("raw", type=Path)
    two.add_argument("out", type=Path, help="folder for the files of documents")
    two.add_argument("--shards", type=int, default=12)
    two.add_argument(
        "--part", type=float, default=0.35, help="share of the written texts that a shard has"
    )
    two.add_argument("--by-hand", type=int, default=120_000, help="hand-written pieces in a shard")
    two.add_argument("--seed", type=int, default=0)
    two.set_defaults(call=assemble)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
