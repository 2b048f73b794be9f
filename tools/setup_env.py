"""Make .venv with everything the series needs: python3 tools/setup_env.py, or make setup.

This file is valid Python of any version from 2.7 on, so that an old one can say which is needed.
environment.py does the work.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - this file meets older ones
    version = sys.version.split()[0]
    sys.exit(
        "pagedlab needs Python 3.10 or newer, and this is " + version + ": make PYTHON=python3.12, or"
        " python3.12 tools/setup_env.py"
    )

from environment import main

if __name__ == "__main__":
    main()
