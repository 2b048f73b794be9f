"""pagedlab generate: continues prompts, and reports the time and the blocks that it took."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pagedlab import SamplingParams
from pagedlab.arguments import counted, visible
from pagedlab.stats import Stats
from pagedlab_fast import LLM
from pagedlab_serve.cli.options import sampling_params
from pagedlab_serve.command_line import (
    ended_by_ctrl_c,
    engine_arguments,
    print_now,
    status_on_stderr,
)


def run(asked: argparse.Namespace) -> int:
    """Load the model, continue the prompts and return the exit code."""
    sampling = sampling_params(asked)
    with ended_by_ctrl_c(), status_on_stderr():
        llm = LLM(
            **engine_arguments(asked),
            attention_backend=asked.attention,
            ranks=asked.ranks,
        )
        if asked.attention != "auto":  # for "auto" the engine prints its choice
            print(f"attention: {asked.attention} (you asked for it)")
    with llm:
        if len(asked.prompts) == 1:
            _stream(llm, asked.prompts[0], asked.chat, sampling)
        else:
            _generate(llm, asked.prompts, asked.chat, sampling)
    ranks = f" on {asked.ranks} ranks" if asked.ranks > 1 else ""
    with status_on_stderr():
        print(f"\n{summary(llm.stats, llm.pool.block_size)}{ranks}")
    return 0


def _stream(llm: LLM, prompt: str, is_chat: bool, sampling: SamplingParams) -> None:
    """Print a text while it grows. A file or a pipe gets the text alone, without its prompt."""
    stream = llm.stream(_as_prompt(prompt, is_chat), sampling)
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        print_now(f"\n> {prompt}")
    is_first = True
    try:
        for piece in stream:
            text = piece.lstrip() if is_first else piece
            print(visible(text) if is_terminal else text, end="", flush=True)
            is_first = False
    finally:
        print(flush=True)  # after Ctrl-C too, so that what follows has a line of its own


def _generate(llm: LLM, prompts: list[str], is_chat: bool, sampling: SamplingParams) -> None:
    """Print the texts of several prompts, which run in one batch."""
    batch = [_as_prompt(prompt, is_chat) for prompt in prompts]
    outputs = [completion.outputs[0] for completion in llm.generate(batch, sampling)]
    for prompt, output in zip(prompts, outputs, strict=True):
        print_now(f"\n> {prompt}\n{output.text.strip()}")
    if error := next((output.error for output in outputs if output.error), None):
        raise FloatingPointError(error)


def _as_prompt(prompt: str, is_chat: bool) -> Any:
    return [{"role": "user", "content": prompt}] if is_chat else prompt


def summary(stats: Stats, block_size: int) -> str:
    """Return the figures of a run in one line."""
    tokens = counted(stats.output_tokens, "token")
    blocks = counted(stats.blocks_peak, "block")
    were = "was" if stats.blocks_peak == 1 else "were"
    return (
        f"{tokens} in {stats.seconds:.2f} s ({stats.tokens_per_second:.1f} tokens/s); at the peak "
        f"{blocks} of {block_size} tokens {were} in use ({size_of(stats.bytes_peak)})"
    )


def size_of(num_bytes: int) -> str:
    """Return a number of bytes in MiB, or in KiB where it would be 0.0 MiB or little more."""
    if num_bytes < 2**20:
        return f"{num_bytes / 2**10:.0f} KiB"
    return f"{num_bytes / 2**20:.1f} MiB"
