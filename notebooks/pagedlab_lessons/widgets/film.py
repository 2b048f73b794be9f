"""What a stage shows of a recording: people's names, who wrote each word, and a sentence a step."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

from pagedlab.recipes.trace.format import request_of

Step = dict[str, Any]  # of a recording, or what it says of one sequence

ROLES = ("system", "user", "assistant", "tool")
MOST_NAMES = 3  # in one sentence
MOST_COPIES = 2
# What is said of one sequence, and of several, to which the same happened in a step.
HAPPENED = {
    "queued": ("waits", "wait"),
    "admitted": ("is admitted", "are admitted"),
    "resumed": ("resumes", "resume"),
    "preempted": ("is preempted", "are preempted"),
    "ended": ("ends, and its blocks are free", "end, and their blocks are free"),
}


def film(recording: dict[str, Any], people: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a recording with a sentence for each step, and the roles of a chat.

    Args:
        recording: as docs/trace.md describes it. It is not changed.
        people: words that only one prompt has, by the name of the person who wrote it. The name
            takes the place of "r0". People have the first colours, in this order.
    """
    people = people or {}
    order = [*people]
    names = _names_of(recording["steps"], people)
    steps = []
    before: Step = {}
    for recorded in recording["steps"]:
        step = {field: _named(field, value, names) for field, value in recorded.items()}
        for name, change in step.get("texts", {}).items():
            if roles := roles_of(change):
                change["roles"] = roles
            if "look" in change:
                change["look"] = order.index(name) if name in order else change["look"] + len(order)
        step["said"] = sentence(step, before)
        steps.append(step)
        before = step
    return recording | {"steps": steps}


# Names --------------------------------------------------------------------------------------------


def _names_of(steps: list[Step], people: Mapping[str, str]) -> dict[str, str]:
    """Return each request's person, of those requests that have one; a person has the first."""
    names: dict[str, str] = {}
    for step in steps:
        for sequence, change in step.get("texts", {}).items():
            prompt = "".join(_prompt_of(change))
            for person, words in people.items():
                if words in prompt and person not in names.values():
                    names[request_of(sequence)] = person
    return names


def _prompt_of(change: Step) -> list[str]:
    """Return the words of a prompt, if this is the first change of its sequence."""
    _, words = change.get("words", (0, []))
    return words[: change.get("prompt", 0)]


def _named(field: str, value: Any, names: dict[str, str]) -> Any:
    """Return a field of a step that says "Anna.1" for "r3.1", if request r3 is Anna's."""

    def name_of(sequence: str) -> str:
        request = request_of(sequence)
        return names.get(request, request) + sequence.removeprefix(request)

    if isinstance(value, dict):  # by sequence, or by block
        return {name_of(str(key)): copy(item) for key, item in value.items()}
    return list(map(name_of, value)) if field == "resumed" else value


# Roles --------------------------------------------------------------------------------------------


def roles_of(change: Step) -> dict[int, str]:
    """Return what a chat template added to a prompt: roles, line ends, and a system message.

    Args:
        change: the first one of a sequence. A special token's word is "".

    Returns:
        By position: the role at the word that names it, and "" at other words.
    """
    words = _prompt_of(change)
    if not _is_role(words, 1) or words[2:3] != ["\n"]:
        return {}
    roles: dict[int, str] = {}
    speaker = ""
    for i, word in enumerate(words):
        is_line_end = word == "\n" and (words[i - 1] == "" or bool(roles.get(i - 1)))
        if _is_role(words, i):
            roles[i] = speaker = word
        elif speaker == "system" or word == "" or is_line_end:
            roles[i] = ""
    return roles


def _is_role(words: Sequence[str], i: int) -> bool:
    """Return whether a word names who speaks."""
    return 0 < i < len(words) and words[i - 1] == "" and words[i] in ROLES


# Sentences ----------------------------------------------------------------------------------------


def sentence(step: Step, before: Step) -> str:
    """Return what happened in a step.

    Args:
        step: as a recording has it.
        before: the step before it; {} if it is not known.
    """
    if not step["step"] and not step.get("texts"):
        return "No request is here yet. Every block is free."
    parts = [*_of_sequences(step, before), *_of_the_pool(step)] or [_work(step)]
    said = "; ".join(parts)
    names = (*step.get("texts", {}), *step.get("computed", {}))
    return f"{said}." if said.startswith(names) else f"{said[0].upper()}{said[1:]}."


def _of_sequences(step: Step, before: Step) -> Iterator[str]:
    """Yield what happened to the sequences that a step changed."""
    names: dict[str, list[str]] = {happened: [] for happened in HAPPENED}
    for name, change in step.get("texts", {}).items():
        match change.get("state"):
            case None:
                continue
            case "waiting" | "swapped":
                happened = "preempted" if name in step.get("preempted", {}) else "queued"
            case "running":
                happened = "resumed" if name in step.get("resumed", ()) else "admitted"
            case _:
                happened = "ended"
        names[happened].append(name)
    for happened, those in names.items():
        if those:
            said = _clause(those, *HAPPENED[happened])
            yield f"out of blocks: {said}" if happened == "preempted" else said
    cached = step.get("cached", 0) - before.get("cached", 0)
    if names["ended"] and before and cached > 0:
        yield f"{cached} of them {'stays' if cached == 1 else 'stay'} cached"


def _of_the_pool(step: Step) -> Iterator[str]:
    """Yield what the pool and its cache did."""
    if hits := step.get("hits"):
        yield f"{_many(len(hits), 'block')} found in the cache"
    for source, destination in step.get("copies", [])[:MOST_COPIES]:
        yield f"block {source} is copied to {destination}"
    if evicted := step.get("evicted"):
        yield f"{_many(len(evicted), 'cached block')} evicted"


def _work(step: Step) -> str:
    """Return which blocks were taken, or else which sequences ran."""
    taken = []
    for name, change in step.get("texts", {}).items():
        _, blocks = change.get("blocks", (0, []))
        taken += [f"{name}’s last block is full: it takes block {block}" for block in blocks]
    if taken:
        return taken[0] if len(taken) == 1 else f"{len(taken)} blocks are taken"
    return _clause(list(step.get("computed", {})), "continues", "continue")


def _clause(names: list[str], singular: str, several: str) -> str:
    """Return names and what they do: "r0 waits", "r0 and r1 wait", "5 sequences wait"."""
    if not names:
        return "nothing runs"
    subject = _many(len(names), "sequence") if len(names) > MOST_NAMES else " and ".join(names)
    return f"{subject} {several if len(names) > 1 else singular}"


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
