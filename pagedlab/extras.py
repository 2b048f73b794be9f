"""Names the extra that installs a missing package: pip install "pagedlab[server]"."""

from __future__ import annotations

from importlib.util import find_spec


class MissingExtra(ModuleNotFoundError):
    """A package is not installed. The message names the extra that installs it."""


def require(extra: str, *modules: str) -> None:
    """Check that modules of other packages can be imported. It does not import them.

    Args:
        extra: the extra of pagedlab that installs them.
        modules: their names.

    Raises:
        MissingExtra: If one cannot be found. The message has one line.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(
                f'{module} is not installed: pip install "pagedlab[{extra}]"', name=module
            )
