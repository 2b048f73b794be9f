"""torchrun -m pagedlab.distributed "prompt": as `python -m pagedlab`, on the ranks that torchrun started."""

from __future__ import annotations

import os
import sys

from pagedlab.__main__ import main as texts
from pagedlab.__main__ import parse
from pagedlab.distributed import kind_of_device, serve_rank, torchrun_store
from pagedlab.distributed.shards import check_split
from pagedlab.model import choose_model, read_config


def main(arguments: list[str]) -> int:
    """What this process does: rank 0 is the front, and the others serve it."""
    if "RANK" not in os.environ:
        print('error: start this with torchrun, or use python -m pagedlab --ranks 2 "prompt"', file=sys.stderr)
        return 2
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if rank == 0:
        return texts([*arguments, "--ranks", str(size)])
    options = parse(arguments)
    try:
        source, kind = choose_model(options.model)[0], kind_of_device(options.device, size)
        check_split(read_config(source), size)
        words = {"model": source, "dtype": options.dtype, "device": kind, "attention": options.attention}
        serve_rank(rank, size, torchrun_store(size), words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
