"""Plausible wrong answers to the exercises of notebook 14."""

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "arrivals": [
        ("-math.log(1 - u) / rate", "1 / rate"),
        ("now += -math", "now = -math"),
        ("/ rate", "* rate"),
    ],
    "latencies": [
        ("times[0] - arrived", "times[0] - admitted", "The clock starts when the client sends the request"),
        ("max(gaps, default=0.0)", "sum(gaps) / max(1, len(gaps))"),
        ("max(gaps, default=0.0)", "max([times[0] - arrived, *gaps])"),
    ],
    "goodput": [
        ("] and gap", "] or gap"),
        ("first <= limits[0]", "first < limits[0]"),
        ("gap <= limits[1]", "gap <= limits[0]"),
        ("first <= limits[0] and gap <= limits[1]", "first <= limits[0]"),
    ],
    "fair_ratios": [
        (
            "best[run.compared] = max(run.tokens_per_s, best.get(run.compared, 0.0))",
            "best.setdefault(run.compared, []).append(run.tokens_per_s)\n"
            "    best = {key: sum(rates) / len(rates) for key, rates in best.items()}",
        ),
        ("rate / best[key]", "best[key] / rate"),
        (
            "    return {",
            "    best = {key: max(r for k, r in best.items() if k.workload == key.workload) for key in best}\n"
            "    return {",
        ),
        (
            "rate / best[key] for key, rate in ours.items() if key in best",
            "rate / best.get(key, rate) for key, rate in ours.items()",
        ),
    ],
}
