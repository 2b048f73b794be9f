"""Plausible wrong answers to the exercises of notebook 10, and right ones that differ from the solution."""

# what a step takes --------------------------------------------------------------------------------------------


def in_a_loop(host_ms, kernels_ms, faster):
    device_ms = 0.0
    for group in kernels_ms:
        device_ms += kernels_ms[group] / faster[group] if group in faster else kernels_ms[group]
    return device_ms if device_ms > host_ms else host_ms


# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "step_floor": [
        ("1000 * ", ""),
        ("(weight_bytes + kv_bytes * sum(contexts))", "sum(weight_bytes + kv_bytes * context for context in contexts)"),
        ("(weight_bytes + kv_bytes * sum(contexts))", "max(weight_bytes, kv_bytes * sum(contexts))"),
    ],
    "step_time": [
        ("max(host_ms, device_ms)", "host_ms + device_ms"),
        ("in kernels_ms.items())", "in kernels_ms.items() if group in faster)"),
        ("ms / faster", "ms * faster"),
        ("sum(ms", "max(ms"),
    ],
    "wasted_rows": [
        ("left if foreseen else left + steps", "left"),
        ("left if foreseen else left + steps", "left + steps"),
        ("-tokens % steps", "steps - tokens % steps"),
    ],
}
RIGHT = {
    "step_time": [in_a_loop],
}
