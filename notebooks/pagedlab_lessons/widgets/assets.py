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
    sources = []
    for part in script_names(name):
        source = _read(f"{part}.js")
        sources.append(_EXPORT.sub("", _IMPORT.sub("", source)))
    return "\n".join(sources)


def script_names(name: str) -> list[str]:
    """Return the script of this name and all that it imports, each after those that it imports."""
    names: list[str] = []
    _add_script(name, names)
    return names


def _add_script(name: str, names: list[str]) -> None:
    for imported in _IMPORT.findall(_read(f"{name}.js")):
        if imported not in names:
            _add_script(imported, names)
    names.append(name)


def style(*names: str) -> str:
    """Return the style sheets of these names, one after the other."""
    return "".join(_read(f"{name}.css") for name in names)


def _read(file: str) -> str:
    return (_HERE / file).read_text(encoding="utf-8")
