"""Notebook 07 where Triton is not installed: kernels can be read, and a cell that would run one
says so in one line.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any

# transformers looks for Triton when it is imported, so it must be imported before Triton seems to
# be there.
import transformers.models.qwen2.modeling_qwen2  # noqa: F401
from IPython import get_ipython

SKIPPED = (
    "Skipped: it runs a Triton kernel, and Triton is for Linux. On Windows take WSL, on a Mac "
    "Colab."
)


class NeedsTriton(BaseException):
    """No Exception, so that nothing on the way takes it for a fault of the reader's kernel."""


class Absent:
    """In the place of Triton, of its kernels (`fn` is what was decorated), and of what a skipped
    cell did not make.
    """

    __spec__ = ModuleSpec("triton", None)

    def __init__(self, fn: Callable[..., Any] | None = None) -> None:
        if fn:
            self.fn = fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()

    def jit(self, fn: Callable[..., Any] | None = None, **_: Any) -> Any:
        return Absent(fn) if fn else Absent

    def _used(self, *_: Any, **__: Any) -> Any:
        raise NeedsTriton

    __call__ = __getitem__ = __iter__ = _used


def skip_what_runs_kernels() -> None:
    """From the next cell on, whatever uses Triton is skipped, and whatever uses what a skipped cell
    was to make.
    """
    shell: Any = get_ipython()
    parts = ("", ".language", ".runtime", ".runtime.interpreter")
    sys.modules |= {f"triton{part}": Absent() for part in parts}  # type: ignore[misc]

    @contextmanager
    def skipping(names: list[str]) -> Iterator[None]:
        before = {name: shell.user_ns.get(name) for name in names}
        try:
            yield
        except NeedsTriton:
            print(SKIPPED)
            shell.user_ns.update(
                (n, Absent()) for n, old in before.items() if shell.user_ns.get(n) is old
            )

    class Guarded(ast.NodeTransformer):
        def visit_Module(self, cell: ast.Module) -> ast.Module:
            """The cell in a `with`, its last expression shown after it."""
            bound = [
                n.id
                for n in ast.walk(cell)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            ]
            names = [name for name in bound + [getattr(n, "name", "") for n in cell.body] if name]
            guarded = ast.parse(f"_shown = None\nwith _skipping({names}):\n    pass\n_shown")
            body: list[ast.stmt] = list(cell.body)
            if body and isinstance(last := body[-1], ast.Expr):
                body[-1] = ast.copy_location(
                    ast.Assign([ast.Name("_shown", ast.Store())], last.value), last
                )
            guarded.body[1].body = body or guarded.body[1].body  # type: ignore[attr-defined]
            return ast.fix_missing_locations(guarded)

    shell.push({"_skipping": skipping}, interactive=False)
    shell.ast_transformers.append(Guarded())
    print(
        "Triton is not installed here: kernels are shown, and cells that run one say so and are "
        "skipped."
    )
