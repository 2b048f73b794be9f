"""The scripts and styles of the widgets, as their pages get them."""

import re
from pathlib import Path

_HERE = Path(__file__).parent
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=class |function |const )", re.MULTILINE)


def script(name: str) -> str:
    """Return a script and all that it imports, as one module with the script's default export.

    anywidget loads one module. The names of all scripts are in it, so no two of them may be alike.
    """
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", source)) for source in _sources(name))


def _sources(name: str) -> list[str]:
    """Return the script of this name and all that it imports, each after those that it imports."""
    source = _read(f"{name}.js")
    found = []
    for imported in _IMPORT.findall(source):
        found += _sources(imported)
    return list(dict.fromkeys([*found, source]))


def style(*names: str) -> str:
    """Return the style sheets of these names, one after the other."""
    return "".join(_read(f"{name}.css") for name in names)


def _read(file: str) -> str:
    return (_HERE / file).read_text(encoding="utf-8")
