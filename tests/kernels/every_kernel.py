"""Every Triton kernel once, small, checked: what compute-sanitizer is pointed at.

    compute-sanitizer --tool memcheck python tests/kernels/every_kernel.py
    compute-sanitizer --tool racecheck python tests/kernels/every_kernel.py

PYTORCH_NO_CUDA_MEMORY_CACHING=1 gives every tensor an allocation of its own, so that reading past one shows.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pagedlab_lessons import ladder

from pagedlab.kernels.attention import triton_attention
from pagedlab.kernels.cache import copy_blocks, write_kv
from pagedlab.kernels.plan import launch_plan
from pagedlab_fast.kernels.penalties import Penalties
from pagedlab_fast.kernels.sampling import triton_sample
from support.attention_cases import assert_as_close_as_torch, make

BATCHES = {
    "decode": [(1, 1), (1, 16), (1, 17), (1, 300), (1, 0)],
    "decode, split": [(1, 900), (1, 256), (1, 0)],
    "mixed": [(1, 33), (40, 40), (9, 100), (1, 700), (0, 4), (1, 0)],
    "prefill": [(150, 150), (70, 90)],
}


def main():
    for heads, dim, block_size in [((14, 2), 64, 16), ((8, 2), 128, 16), ((5, 1), 80, 8)]:
        for dtype in (torch.bfloat16, torch.float32):
            for name, lengths in BATCHES.items():
                case = make(0, lengths, heads, dim, block_size, dtype)
                args = case.arguments("cuda")
                plan = launch_plan(args[0], args[1], args[3])
                assert_as_close_as_torch(case, triton_attention(*args, plan=plan).cpu())
                print(f"{name}: heads {heads}, dim {dim}, {dtype}, splits {plan.splits}")
    case = make(0, [(1, length) for length in (1, 16, 100)], (8, 2), 64)
    args = case.arguments("cuda")[:5]
    for name, rung in ladder.RUNGS.items():
        assert_as_close_as_torch(case, rung(*args).cpu())
        print(name)
    keys, values = torch.randn(2, 2, 6, 8, 3, 80, device="cuda")
    k, v = torch.randn(2, 5, 3, 80, device="cuda")
    write_kv(k, v, keys[1], values[1], torch.tensor([3, -1, 47, 0, 9], device="cuda"))
    assert torch.equal(keys[1].flatten(0, 1)[[3, 47, 0, 9]], k[[0, 2, 3, 4]])
    expected = values[:, [0, 5]].clone()
    copy_blocks(keys, values, [0, 5], [1, 2])
    assert torch.equal(values[:, [1, 2]], expected)
    print("write, copy")
    logits = torch.randn(3, 5000, device="cuda")
    temperature, top_k, top_p, u = torch.tensor([[0.0, 1, 1], [0, 1, 0], [1, 1, 1e-6], [0.5, 0.5, 0.5]], device="cuda")
    tokens = triton_sample(logits, temperature, top_k, top_p, u)
    assert torch.equal(tokens, logits.argmax(1)), "greedy, top_k = 1 and a tiny top_p"
    counts = torch.zeros(2, 5000, dtype=torch.int32, device="cuda")
    counts[1, tokens[0]] = 1
    columns = torch.tensor([[100.0, 1, 1], [0, 0, 0], [0, 0, 0]], device="cuda")
    penalties = Penalties(counts, torch.tensor([1, -1, 0], device="cuda"), columns)
    others = triton_sample(logits, temperature, top_k, top_p, u, penalties)
    assert others.tolist() == [logits[0].topk(2).indices[1].item(), *tokens[1:].tolist()], "the second, if penalised"
    most = torch.tensor([0.0, 1.0, 1.0], device="cuda")
    assert torch.equal(triton_sample(logits, u, u * 0, u * 0 + 1, u, min_p=most)[1:], logits[1:].argmax(1)), "min_p"
    print("sample")


if __name__ == "__main__":
    main()
