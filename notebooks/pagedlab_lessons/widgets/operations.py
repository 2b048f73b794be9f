"""Operations on a pool and its tables, by name: what a click on the block grid does."""

from typing import NamedTuple

VERBS = {
    "new": "new {sequence}",
    "append": "append {n} to {sequence}",
    "fork": "fork {sequence} into {child}",
    "free": "free {sequence}",
}


class Operation(NamedTuple):
    """One operation.

    Args:
        verb: one of `VERBS`.
        sequence: name of the sequence.
        n: tokens to add (new, append).
        child: the name that a fork gets.
    """

    verb: str
    sequence: str
    n: int = 0
    child: str | None = None

    @property
    def changed(self) -> str:
        """The name of the sequence that it makes or changes."""
        return self.child or self.sequence

    def __str__(self) -> str:
        return VERBS[self.verb].format(**self._asdict())


def operations(text: str) -> tuple[Operation, ...]:
    """Return the operations in a text.

    Args:
        text: such as "new s0 20, fork s0 s1, append s1 1, free s0".
    """
    found = []
    for line in text.split(","):
        verb, name, *rest = line.split()
        if verb == "fork":
            found.append(Operation(verb, name, child=rest[0]))
        else:
            found.append(Operation(verb, name, n=int(rest[0]) if rest else 0))
    return tuple(found)
