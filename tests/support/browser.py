"""JupyterLab in headless Chromium, for tests.

    with jupyter_lab(folder, chromium) as lab, lab.notebook("demo.ipynb") as page:
        run_all(page)
        page.locator('[data-op="new"]').click()

Nothing of the user's own Jupyter settings is read or written. Errors of cells are read from the notebook's
model: their output carries no class or type of its own on the page.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.paths import ROOT

LAB_SETTINGS = {
    # "full" takes cells that are scrolled away out of the page, where no selector finds them
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none", "autoStartDefaultKernel": True},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync"]
OPEN = "async (what) => { await window.jupyterapp.commands.execute('docmanager:open', what); }"
IS_IDLE = """(path) => {
    const notebook = window.jupyterapp?.shell.currentWidget;
    return notebook?.context?.path === path && document.querySelector('.jp-Notebook .jp-Cell')
        && notebook.sessionContext?.session?.kernel?.status === 'idle';
}"""
KERNEL = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id"
CLOSE = "() => window.jupyterapp.shell.currentWidget.dispose()"  # `close` would ask whether to save
FORGET_ALL = "from ipywidgets import Widget\nWidget.close_all()\n%reset -f"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


def chromium():
    """The path of a Chromium: $CHROMIUM, or one on the path."""
    for name in (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and shutil.which(name):
            return shutil.which(name)
    return None


def missing():
    """Why no browser test can run here, or None if they can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install playwright"
    return None if chromium() else "no chromium found: install it, or set CHROMIUM to its path"


def write_notebook(path: Path, cells: Sequence[str]):
    """Write a notebook of code cells without outputs."""
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


class Lab:
    """A running JupyterLab and a browser to look at it."""

    def __init__(self, url: str, root: Path, browser):
        self.url, self.root, self._browser = url, root, browser
        self._free: list[Any] = []  # pages whose notebook was closed: there the next one takes a quarter of the time
        self._kernel: str | None = None  # the shared one

    @contextmanager
    def notebook(self, name: str, width: int = 1280, height: int = 900):
        """Open a notebook of the server's folder, alone in its page; wait until its kernel is idle.

        Notebooks are opened one after another and share a kernel. It forgets all names and widgets between them, but
        has torch already.
        """
        page = self._free.pop() if self._free else self._browser.new_context().new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.problems = []  # what the page's own scripts complain about
        kernel = self._kernel if page.url.startswith(self.url) else None
        try:
            if page.url.startswith(self.url):
                page.evaluate(OPEN, {"path": name, "kernel": {"id": kernel}} if kernel else {"path": name})
            else:
                page.on("pageerror", lambda error: page.problems.append(str(error)))
                page.on("console", lambda line: page.problems.append(line.text) if line.type == "error" else None)
                page.goto(f"{self.url}/doc/tree/{name}?reset", wait_until="domcontentloaded")
            page.wait_for_function(IS_IDLE, arg=name, timeout=60_000)
            yield page
            run_python(page, FORGET_ALL)
            self._kernel = page.evaluate(KERNEL)
            page.evaluate(CLOSE)
        except BaseException:  # what is left in that page, nobody knows
            page.context.close()
            self._kernel = None
            raise
        self._free.append(page)


@contextmanager
def jupyter_lab(root: Path, chromium):
    """Start a JupyterLab on the loopback interface that serves `root`, to be opened in this Chromium."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for plugin, value in LAB_SETTINGS.items():
            file = scratch / "settings" / f"{plugin}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(value), encoding="utf-8")
        homes = {f"JUPYTER_{kind}_DIR": str(scratch / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
        options = {
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port_retries": 50,  # another program may have the usual port
            "ServerApp.root_dir": root,
            "ServerApp.disable_check_xsrf": True,
            "IdentityProvider.token": "",
            "LabApp.user_settings_dir": scratch / "settings",
            "LabApp.workspaces_dir": scratch / "workspaces",
            "LabApp.extension_manager": "readonly",
            "LabApp.news_url": "",
            "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        }
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
        log = scratch / "server.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [*command, *(f"--{name}={value}" for name, value in options.items())],
                env={
                    **os.environ,
                    **homes,
                    "IPYTHONDIR": str(scratch / "ipython"),
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'notebooks'}",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Lab(_wait_until_up(scratch / "runtime", server, log), root, chromium)
        finally:
            server.terminate()  # it ends its kernels too
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait_until_up(runtime: Path, server: subprocess.Popen[bytes], log: Path):
    """The address that the server wrote into its runtime folder, once it answers there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            (info,) = runtime.glob("jpserver-*.json")
            url = f"http://127.0.0.1:{json.loads(info.read_text(encoding='utf-8'))['port']}"
            urllib.request.urlopen(f"{url}/api/status", timeout=2).close()
            return url
        except (ValueError, OSError):  # no file yet, or half of one; no answer yet
            time.sleep(0.1)
    raise RuntimeError("JupyterLab did not start:\n" + log.read_text(errors="replace")[-3000:])


def run_all(page, timeout_s: float = 300):
    """Run all cells and wait for the last one's end."""
    page.evaluate("async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.wait_for_function(
        "() => ![...document.querySelectorAll('.jp-InputPrompt')].some(e => e.textContent.includes('[*]'))",
        timeout=timeout_s * 1000,
    )


def cell_errors(page):
    """The errors in the notebook's outputs, as "cell 3: ValueError: ..."."""
    return page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.context.model.toJSON().cells.flatMap((cell, i) =>
            (cell.outputs || []).filter(o => o.output_type === 'error')
                .map(o => `cell ${i}: ${o.ename}: ${o.evalue}`))"""
    )


def run_python(page, code: str):
    """Run code in the notebook's kernel and return what it prints."""
    return page.evaluate(
        """async (code) => {
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            const future = kernel.requestExecute({ code });
            let text = '';
            future.onIOPub = (message) => {
                if (message.header.msg_type === 'stream') text += message.content.text;
                if (message.header.msg_type === 'error') text += message.content.traceback.join('\\n');
            };
            await future.done;
            return text;
        }""",
        code,
    )


def set_theme(page, theme: str):
    """Switch to "light" or "dark" and wait until the page has it."""
    page.evaluate("t => window.jupyterapp.commands.execute('apputils:change-theme', { theme: t })", THEMES[theme])
    page.wait_for_function("light => document.body.dataset.jpThemeLight === light", arg=str(theme == "light").lower())
