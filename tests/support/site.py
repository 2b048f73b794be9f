"""The built site and a server for it, for tests that open it in a browser.

Building takes minutes: `make test-lite` asks for it (PAGEDLAB_TEST_LITE=1).
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from support import browser
from support.paths import ROOT


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextmanager
def serving(folder: Path):
    """A static server on the loopback interface: its address, which ends with a slash."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@cache
def lite_folder():
    """JupyterLite, built at the first call. Skips the test if the build is not wanted or not possible."""
    if not os.environ.get("PAGEDLAB_TEST_LITE"):
        pytest.skip("building JupyterLite takes minutes: make test-lite")
    if why := browser.missing():
        pytest.skip(why)
    subprocess.run([sys.executable, ROOT / "tools" / "build_lite.py"], check=True)
    return ROOT / "build" / "live" / "lite"
