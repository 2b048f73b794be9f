"""pagedlab generate: continues prompts, and reports the time and the blocks that it took."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from pagedlab.sampling_params import SamplingParams
from pagedlab_serve.cli.options import (
    BlockSize,
    Device,
    Dtype,
    MaxTokens,
    Model,
    NumBlocks,
    Seed,
    Temperature,
    load_llm,
)
from pagedlab_serve.cli.terminal import visible

Prompts = Annotated[
    list[str] | None, typer.Argument(help="Texts to continue; without any, the one of a pipe.")
]
Chat = Annotated[bool, typer.Option("--chat", help="Send each prompt as a user's chat message.")]
TopP = Annotated[
    float,
    typer.Option(
        help="Sample from the likeliest tokens whose probabilities reach this sum (up to 1)."
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="A text that ends the answer and is no part of it; may be repeated."),
]
Attention = Annotated[
    Literal["auto", "torch", "triton", "concat", "safe", "online"],
    typer.Option(
        help="concat joins all keys of a sequence, safe and online go block by block, in two "
        "passes and in one; auto is the fastest here.",
    ),
]
Ranks = Annotated[int, typer.Option(min=1, help="Processes that share the model, a part each.")]


def generate(
    prompts: Prompts = None,
    chat: Chat = False,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    block_size: BlockSize = 16,
    num_blocks: NumBlocks = None,
    attention: Attention = "auto",
    ranks: Ranks = 1,
) -> None:
    """Continue prompts from a paged KV cache."""
    texts = prompts or [_text_of_a_pipe()]
    batch: list[Any] = [[{"role": "user", "content": text}] if chat else text for text in texts]
    sampling = SamplingParams(
        max_tokens, temperature, top_p=top_p, seed=seed, stop=tuple(stop or ())
    )
    parts = {"attention_backend": attention, "ranks": ranks}
    llm = load_llm(model, device, dtype, block_size, num_blocks, **parts)
    with llm:
        if len(batch) == 1:
            for piece in llm.stream(batch[0], sampling):
                typer.echo(visible(piece), nl=False)
            typer.echo()
        else:
            for text, completion in zip(texts, llm.generate(batch, sampling), strict=True):
                (output,) = completion.outputs
                typer.echo(visible(f"\n> {text}\n{output.text.strip()}"))
                if output.error:
                    raise FloatingPointError(output.error)
    typer.echo(f"\n{llm.stats}", err=True)


def _text_of_a_pipe() -> str:
    """Return the text on stdin, without the last line's end. `ValueError` if there is none."""
    text = "" if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    if not text:
        raise ValueError('name a prompt, for example "Once upon a time", or send one by a pipe')
    return text
