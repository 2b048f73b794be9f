"""python -m pagedlab: the same as the command `pagedlab`."""

from __future__ import annotations

import sys

from pagedlab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
