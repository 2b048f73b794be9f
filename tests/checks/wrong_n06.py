"""Plausible wrong answers to the exercises of notebook 06, and right ones that differ from the solution."""

from pagedlab_lessons.checks.n06 import online_step


def in_place(m, total, out, scores, v):
    """Right, and writes over what it was given."""
    new = online_step(m, total, out, scores, v)
    return m.copy_(new[0]), total.copy_(new[1]), out.copy_(new[2])


def step_in_fp32(*state_and_block):
    return online_step(*(x.float() for x in state_and_block))


SCORES = "(rows @ k.permute(1, 2, 0)).unflatten(1, (group, n))"
GROUPED = "q.unflatten(1, (k.shape[1], -1))"

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "softmax_step": [
        ("base = new_m.masked_fill(new_m == -torch.inf, 0)", "base = new_m", "total differs."),
        ("torch.exp(m - base), torch.exp(scores - base)", "1, torch.exp(scores - base)", "total differs."),
        ("out = out * rescale", "out = out", "out differs."),
        ("scores.amax(dim=-1, keepdim=True)", "scores.amax()", "m differs."),
        (
            "return new_m, total, out",
            "return new_m, total, out / total.clamp(min=1e-300)",
            "not divided by total",
        ),
        ("return new_m, total, out", "return new_m.squeeze(-1), total.squeeze(-1), out", "another shape"),
    ],
    "merge_halves": [
        ("m = torch.maximum(m_a, m_b)", "m = m_a", "m differs."),
        ("out_a * rescale_a + out_b * rescale_b", "out_a + out_b", "out differs."),
        ("base = m.masked_fill(m == -torch.inf, 0)", "base = m", "total differs."),
        (
            "return m, total_a * rescale_a + total_b * rescale_b, out_a * rescale_a + out_b * rescale_b",
            "return (out_a * rescale_a + out_b * rescale_b) / (total_a * rescale_a + total_b * rescale_b)",
            "Return three tensors: m, total and out.",
        ),
        (
            "return m, total_a * rescale_a + total_b * rescale_b, out_a * rescale_a + out_b * rescale_b",
            "total = total_a * rescale_a + total_b * rescale_b\n"
            "    return m + total.log(), total / total, (out_a * rescale_a + out_b * rescale_b) / total",
            "store an equivalent state",
        ),
    ],
    "shared_heads": [
        (
            "q.reshape(n, k.shape[1], group, head_dim).permute(1, 2, 0, 3)",
            "q.reshape(n, group, k.shape[1], head_dim).permute(2, 1, 0, 3)",
            "dealt out in turn",
        ),
        (".permute(1, 2, 0, 3)", ".permute(1, 0, 2, 3)", "The smallest case that differs"),
        (
            SCORES,
            "(q.transpose(0, 1) @ k.repeat_interleave(group, dim=1).permute(1, 2, 0)).unflatten(0, (-1, group))",
            "keys were repeated in memory",
        ),
        # looks free: torch expands the keys and, since bmm wants one batch axis, copies them
        (SCORES, f'torch.einsum("nhgd,lhd->nhgl", {GROUPED}, k)', "another shape"),
    ],
}
RIGHT_EDITS = {
    "shared_heads": [
        (SCORES, f'torch.einsum("nhgd,lhd->hgnl", {GROUPED}.float(), k.float())'),
        (SCORES, "torch.stack([q[:, h] @ k[:, h // group].T for h in range(num_heads)]).unflatten(0, (-1, group))"),
    ]
}
RIGHT = {"softmax_step": [in_place, step_in_fp32]}
