"""python -m pagedlab "prompt" ["prompt" ...]: the texts, the time they took, and the blocks they used.

python -m pagedlab --download [hub id] fetches a model first, Qwen2.5-0.5B-Instruct if none is named.
"""

import argparse
import sys

from pagedlab import LLM, SamplingParams  # first: it says how torch's threads wait, before torch is imported
from pagedlab.attention import BACKENDS
from pagedlab.loading import DEFAULT_MODEL


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(prog="python -m pagedlab", description="Continue prompts from a paged KV cache.")
    add = parser.add_argument
    add("prompts", nargs="*", metavar="prompt")
    add("--model", help="hub id, folder or .gguf file; default: PAGEDLAB_MODEL, Qwen2.5-0.5B, or tiny")
    add("--download", nargs="?", const=DEFAULT_MODEL, metavar="ID", help=f"from the hub: {DEFAULT_MODEL}")
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
    options = parse(arguments)
    from pagedlab.hub import download

    try:
        if options.download:
            download(options.download)
            options.model = options.model or options.download
        if not options.prompts:
            return 0
        params = SamplingParams(options.max_tokens, options.temperature, seed=options.seed)
        sizes = {"block_size": options.block_size, "num_blocks": options.num_blocks, "tensor_parallel": options.ranks}
        where = {"device": options.device, "dtype": options.dtype, "attention_backend": options.attention}
        with LLM(options.model, **where, **sizes) as llm:
            prompts = [[{"role": "user", "content": p}] for p in options.prompts] if options.chat else options.prompts
            completions = llm.generate(list(prompts), params)
    except (ValueError, ConnectionError) as error:  # a rank that ended is one
        print(f"error: {error}", file=sys.stderr)
        return 2
    for prompt, completion in zip(options.prompts, completions, strict=True):
        print(f"\n> {prompt}\n{completion.outputs[0].text.strip()}")
    print(f"\n{f'{options.ranks} ranks' if options.ranks > 1 else 'paged'}: {llm.stats}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
