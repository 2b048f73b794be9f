"""Plausible wrong answers to the exercises of notebook 10."""

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
