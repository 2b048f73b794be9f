"""Microseconds of one sum over all cards, many of them in a CUDA graph, as a step has them.

torchrun --standalone --nproc-per-node 2 benchmarks/sums.py [--json FILE]

NCCL's all-reduce, and torch's one-shot sum in symmetric memory, in which every rank reads all summands at once. bf16,
rows of Qwen2.5-0.5B's and 14B's width, the best of six rounds. By hand, because `triton.testing` lets each process
choose how often it repeats, and ranks that sum must agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from common import Result, command_line

SIZES = [*((rows, width) for width in (896, 5120) for rows in (1, 64, 256)), (512, 5120)]
LARGE = [(2048, 5120), (16384, 5120)]


def microseconds(work: Callable[[], object], times: int, repeats: int) -> float:
    """Of one `work` in a graph of so many."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(times):
            work()
    graph.replay()
    best = float("inf")
    for _ in range(6):
        torch.cuda.synchronize()
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1e3 * start.elapsed_time(end) / times / repeats)
    return best


def all_reduce(rows: int, width: int) -> Callable[[], object]:
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    return lambda: dist.all_reduce(x)


def one_shot(rows: int, width: int) -> Callable[[], object]:
    name = dist.group.WORLD.group_name
    x = symmetric.empty(rows, width, dtype=torch.bfloat16, device="cuda").zero_()
    symmetric.rendezvous(x, name)
    return lambda: torch.ops.symm_mem.one_shot_all_reduce(x, "sum", name)


def main() -> None:
    args = command_line(__doc__).parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    is_first = dist.get_rank() == 0
    result = Result("one sum over all cards in a CUDA graph, bf16, see benchmarks/sums.py", args.json)
    for method, sizes in ((all_reduce, SIZES + LARGE), (one_shot, SIZES)):
        for rows, width in sizes:
            times, repeats = (48, 5) if rows < 2048 else (4, 3)
            figure = microseconds(method(rows, width), times, repeats)
            if is_first:
                result.add(f"{rows} x {width}", method.__name__, figure, "us")
    os._exit(0)  # graphs are alive, and NCCL's group would wait for their end


if __name__ == "__main__":
    main()
