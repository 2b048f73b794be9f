"""The command line: python -m pagedlab "prompt" ["prompt" ...]

It prints the texts, the time they took and the blocks they used. python -m pagedlab --download
[hub id] downloads a model first, by default Qwen2.5-0.5B-Instruct.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pagedlab.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pagedlab import LLM, Completion

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended


def stopped_by_hand(program: Callable[[list[str] | None], int], arguments: list[str] | None) -> int:
    """Run a program. Ctrl-C ends it with one line instead of a traceback.

    Args:
        program: takes the arguments and returns the exit code.
        arguments: the arguments; None for those of the command line.

    Returns:
        The exit code.
    """
    try:
        return program(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once, while Python imports and loads.

    A KeyboardInterrupt could be caught by a library, which would then be half imported.
    """

    def end(*_: object) -> None:
        os.write(2, b"stopped\n")
        os._exit(INTERRUPTED)

    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler:  # there is another handler, or none at all
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    from pagedlab.attention import BACKENDS  # imports torch, and Ctrl-C must end that at once
    from pagedlab.loading import DEFAULT_MODEL

    parser = argparse.ArgumentParser(
        prog="python -m pagedlab", description="Continue prompts from a paged KV cache."
    )
    add = parser.add_argument
    add("prompts", nargs="*", metavar="prompt")
    add(
        "--model",
        help="hub id, folder or .gguf file; default: PAGEDLAB_MODEL, Qwen2.5-0.5B, or tiny",
    )
    add(
        "--download",
        nargs="?",
        const=DEFAULT_MODEL,
        metavar="ID",
        help=f"from the hub: {DEFAULT_MODEL}",
    )
    add("--attention", default="auto", metavar="BACKEND", help=", ".join(("auto", *BACKENDS)))
    add("--max-tokens", type=int, default=64)
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int)
    add("--block-size", type=int, default=16)
    add("--num-blocks", type=int)
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--dtype", default="auto")
    add("--ranks", type=int, default=1, help="processes that share the model, a part each")
    add("--chat", action="store_true", help="send each prompt as a user's chat message")
    options = parser.parse_args(arguments)
    if not options.prompts and not options.download:
        parser.error("name a prompt, or --download")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return stopped_by_hand(_main, arguments)


def _main(arguments: list[str] | None) -> int:
    with ended_by_ctrl_c():
        from pagedlab import LLM  # imports torch, and Ctrl-C must end that at once

        options = parse(arguments)
    try:
        if options.download:
            from pagedlab.hub import download  # a wing: only this option needs it

            download(options.download)
            options.model = options.model or options.download
        if not options.prompts:
            return 0
        with ended_by_ctrl_c():
            llm = LLM(
                options.model,
                device=options.device,
                dtype=options.dtype,
                attention_backend=options.attention,
                block_size=options.block_size,
                num_blocks=options.num_blocks,
                tensor_parallel=options.ranks,
            )
        with llm:
            completions = _generate(llm, options)
    except (ValueError, ConnectionError) as error:  # ConnectionError: another rank has ended
        print(f"error: {error}", file=sys.stderr)
        return 2
    for prompt, completion in zip(options.prompts, completions, strict=True):
        print(f"\n> {prompt}\n{completion.outputs[0].text.strip()}")
    kind = f"{options.ranks} ranks" if options.ranks > 1 else "paged"
    print(f"\n{kind}: {llm.stats}")
    return 0


def _generate(llm: LLM, options: argparse.Namespace) -> list[Completion]:
    prompts: list[Any] = options.prompts
    if options.chat:
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    sampling = SamplingParams(options.max_tokens, options.temperature, seed=options.seed)
    return llm.generate(prompts, sampling)


if __name__ == "__main__":
    sys.exit(main())
