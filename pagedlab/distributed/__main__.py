"""torchrun -m pagedlab.distributed "prompt": as `python -m pagedlab`, on the ranks that torchrun
started.
"""

from __future__ import annotations

import os
import sys

from pagedlab.cli.main import main as texts
from pagedlab.command_line import program_name
from pagedlab.distributed import serve_rank, torchrun_store


def main(arguments: list[str]) -> int:
    """What this process does: rank 0 is the front, and the others serve it."""
    if "RANK" not in os.environ:
        print(
            f'error: start this with torchrun, or use {program_name()} generate --ranks 2 "prompt"',
            file=sys.stderr,
        )
        return 2
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if rank == 0:
        return texts([*arguments, "--ranks", str(size)])
    serve_rank(rank, size, torchrun_store(size))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
