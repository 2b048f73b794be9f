"""What all widgets share: scripts and styles as their pages get them, and what a notebook stores in their place."""

import base64
import io
from pathlib import Path
from typing import Any

import anywidget
from IPython.display import display

_HERE = Path(__file__).parent


def script(*names: str) -> str:
    """One module out of page.js and the scripts of that name, one after the other; the last one exports."""
    return "".join((_HERE / f"{name}.js").read_text(encoding="utf-8") for name in ("page", *names))


def style(*names: str) -> str:
    """The style sheets of that name, one after the other."""
    return "".join((_HERE / f"{name}.css").read_text(encoding="utf-8") for name in names)


def png(figure: Any, **options: Any) -> str:
    """A matplotlib figure at twice the pixels, in base64."""
    figure.savefig(file := io.BytesIO(), format="png", dpi=192, **options)
    return base64.b64encode(file.getvalue()).decode()


class Page(anywidget.AnyWidget):
    """A widget with a still of itself for where no widget runs. In a `with` block it is shown at once, until `end`."""

    _handle: Any = None

    def picture(self) -> Any:
        """What is stored of most widgets, as in picture.py; the others have a `still` of their own."""
        raise NotImplementedError

    def still(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is stored beside the live view, by media type, and the sizes of pictures."""
        return self.picture()._repr_mimebundle_()

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.picture().headline()}"

    def end(self) -> None:
        """What is to be done when the block ends."""

    def close(self) -> None:
        """End, and take the widget off the page."""
        self.end()
        super().close()

    def __enter__(self) -> Any:
        self._handle = display(self, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._handle is not None:  # None outside a notebook
            self._handle.update(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        live, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        still, sizes = self.still()
        return {**live, "text/plain": repr(self), **still}, {**metadata, **sizes}
