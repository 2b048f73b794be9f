"""python -m pagedlab_serve: the same as the command `pagedlab`."""

from __future__ import annotations

import sys

from pagedlab_serve.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
