"""Bugs planted into a class: a subclass whose source differs in one place."""

from __future__ import annotations

import inspect
import sys
from textwrap import dedent
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pagedlab import BlockPool


class Bug(NamedTuple):
    """In the source of this method, `new` takes the place of `old`."""

    kind: type
    method: str
    old: str
    new: str

    def planted(self) -> type:
        """The class with the bug. Call it in the test: under mutmut no method has its own source."""
        member = vars(self.kind)[self.method]
        source = dedent(inspect.getsource(member.fget if isinstance(member, property) else member))
        assert source.count(self.old) == 1, f"{self.method} has {source.count(self.old)} times {self.old!r}"
        names = dict(vars(sys.modules[self.kind.__module__]))
        exec(source.replace(self.old, self.new), names)
        return type(f"Buggy{self.kind.__name__}", (self.kind,), {self.method: names[self.method]})


EVICTS_THE_NEWEST = Bug(BlockPool, "victim", "iter(self.cached)", "reversed(self.cached)")


def search(machine):
    """Run a state machine long enough to find what is planted in it: the same search every time."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=1000,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,  # fresh examples are for the code, not for the bugs
            database=None,
            phases=[Phase.generate],  # found is enough: shrinking would take the most time
            report_multiple_bugs=False,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
