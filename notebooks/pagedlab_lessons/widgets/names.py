"""People's names for the sequences of a recording, in place of r0, r1, r2."""

from collections.abc import Mapping
from typing import Any

from pagedlab.recipes.trace.format import request_of

_BY_BLOCK = ("counts", "kept")  # the fields of a step that are written by block, not by sequence


def with_names(recording: dict[str, Any], prompts: Mapping[str, str]) -> dict[str, Any]:
    """Return a recording whose sequences have the names of people.

    Args:
        recording: as docs/trace.md describes it. It is not changed.
        prompts: by each person's name, words that only this person's prompt has.
    """
    names = _names_of(recording["steps"], prompts)

    def named(sequence: str) -> str:
        """Return "Anna.1" for "r3.1", if request r3 is Anna's."""
        request = request_of(sequence)
        return names.get(request, request) + sequence[len(request) :]

    steps = []
    for step in recording["steps"]:
        changed = dict(step)
        for field, value in step.items():
            if isinstance(value, dict) and field not in _BY_BLOCK:
                changed[field] = {named(key): of_key for key, of_key in value.items()}
        if "resumed" in step:
            changed["resumed"] = [named(request) for request in step["resumed"]]
        steps.append(changed)
    return {**recording, "steps": steps}


def _names_of(steps: list[dict[str, Any]], prompts: Mapping[str, str]) -> dict[str, str]:
    """Return each request's person, of those requests that have one."""
    names: dict[str, str] = {}
    for step in steps:
        for sequence, change in step.get("texts", {}).items():
            if "prompt" not in change or "words" not in change:
                continue
            prompt = "".join(change["words"][1][: change["prompt"]])
            for person, words in prompts.items():
                if words in prompt and person not in names.values():
                    names.setdefault(request_of(sequence), person)
    return names
