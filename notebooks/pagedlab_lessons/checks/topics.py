"""The names of the checks, by topic."""

# The module of each check, so that a check imports what it needs itself and no more. Some modules
# need torch, which a browser does not have.
TOPICS = {
    "blocks": (
        "table_by_hand",
        "block_pool",
        "slot",
        "block_table",
        "broken_pools",
        "copy_on_write",
        "copies_after_forks",
        "truncate",
        "order_of_frees",
    ),
    "fragmentation": ("users_that_fit", "last_block_waste", "largest_block", "useless_holes"),
    "sharing": ("reorder_beams", "beam_blocks", "saved_prefill"),
    "prefix": ("prefix_cache", "leaf_first", "foreign_kv"),
    "softmax": ("softmax_step", "merge_halves", "shared_heads"),
    "kernel": ("weights", "scores", "online_step", "paged_scores", "decode", "grouped", "split"),
    "launched": ("launch",),
    "qwen": ("peak_blocks", "attend_one", "mended_pool"),
    "scheduling": ("schedule", "must_preempt", "swap_or_recompute", "victim", "patient"),
    "speed": ("step_floor", "step_time", "wasted_rows"),
    "parallel": ("mlp_part", "heads_of_rank", "wire_bytes"),
    "speculative": ("roll_back", "kept_tokens", "acceptance_rule"),
    "serving": ("engine_loop", "closed_salt"),
    "measuring": ("arrivals", "latencies", "goodput", "fair_ratios"),
}
TOPIC_OF = {name: topic for topic, names in TOPICS.items() for name in names}
