"""What a requirement installs, as far as it is installed here."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def installed_by(requirements: Iterable[str]) -> set[str]:
    """The packages that these requirements install, with what they require in turn."""
    seen: set[str] = set()
    waiting = [*requirements]
    while waiting:
        text = waiting.pop()
        if text in seen:
            continue
        seen.add(text)
        asked = Requirement(text)
        with suppress(PackageNotFoundError):
            for text in requires(asked.name) or []:
                marker = Requirement(text).marker
                if marker is None or any(marker.evaluate({"extra": extra}) for extra in asked.extras or {""}):
                    waiting.append(text)
    return {canonicalize_name(Requirement(text).name) for text in seen}
