"""The options that commands share, and the engine that they ask for."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from pagedlab_fast import LLM

Model = Annotated[
    str | None,
    typer.Option(
        envvar="PAGEDLAB_MODEL",
        help="Hub id, folder or .gguf file; without it, Qwen2.5-0.5B-Instruct if it was "
        "downloaded, else the tiny model that is included.",
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda or for instance cuda:1; auto is a GPU.")]
Dtype = Annotated[
    Literal["auto", "float32", "float16", "bfloat16", "float64"],
    typer.Option(help="auto is bfloat16 on a GPU and float32 on a CPU."),
]
BlockSize = Annotated[int, typer.Option(min=1, help="Tokens per block.")]
NumBlocks = Annotated[
    int | None, typer.Option(min=1, help="Blocks of the pool; without it, all that fit.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="New tokens of an answer, at most.")]
Temperature = Annotated[
    float,
    typer.Option(
        min=0,
        help="0 takes the likeliest token, 1 samples from the model's own probabilities.",
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Equal seeds give equal samples.")]


def load_llm(
    model: str | None,
    device: str,
    dtype: str,
    block_size: int,
    num_blocks: int | None,
    **further: Any,
) -> LLM:
    """Load the engine. Its status goes to stderr: stdout is for what the user asked for.

    Args:
        model, device, dtype, block_size, num_blocks, further: of `LLM`.
    """
    typer.echo("loading torch and transformers ...", err=True)
    from pagedlab_fast import LLM

    with redirect_stdout(sys.stderr):
        return LLM(
            model,
            device=device,
            dtype=dtype,
            block_size=block_size,
            num_blocks=num_blocks,
            **further,
        )
