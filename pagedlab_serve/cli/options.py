"""The options of each command, with their help. Nothing here imports torch."""

from __future__ import annotations

import argparse

from pagedlab import __version__
from pagedlab.arguments import integer, one_of, real
from pagedlab.sampling_params import SamplingParams
from pagedlab.shipped import DEFAULT_MODEL
from pagedlab_serve.command_line import (
    Parser,
    add_model_options,
    add_pool_options,
    check_model_options,
    check_pool_options,
    number,
    program_name,
    whole_number,
)

ATTENTION = ("auto", "torch", "triton", "concat", "safe", "online")
DESCRIPTION = """\
An engine with a paged KV cache, and a series of notebooks that builds it.

commands:
  chat        talk to a model, and see which blocks hold the conversation
  generate    continue prompts
  serve       OpenAI's API, and a page that shows the blocks, live
  download    fetch a model from the Hugging Face hub
  notebooks   copy the notebooks into a folder and open them
  info        versions, devices, and the model that would answer

{prog} COMMAND --help lists the options of a command."""
PROGRAM_EXAMPLES = """\
  {prog} chat
  {prog} generate "Once upon a time"
  {prog} notebooks"""
CHAT_EXAMPLES = """\
  {prog}
  {prog} --model Qwen/Qwen2.5-0.5B-Instruct --download
  {prog} --block-size 4              more, smaller blocks
  echo "Why is the sky blue?" | {prog}"""
GENERATE_EXAMPLES = """\
  {prog} "Once upon a time"
  {prog} --chat "Why is the sky blue?" "What is a drum?"
  {prog} --temperature 0.8 --seed 1 --max-tokens 200 "The old mill"
  {prog} --ranks 2 "Once upon a time"      two processes share the model
  echo "Once upon a time" | {prog} > story.txt"""
DOWNLOAD_EXAMPLES = f"""\
  {{prog}}                         {DEFAULT_MODEL}
  {{prog}} Qwen/Qwen3-0.6B"""
NOTEBOOKS_EXAMPLES = """\
  {prog}
  {prog} ~/paged --no-open"""


def program() -> Parser:
    """Return the parser of `pagedlab` itself."""
    name = program_name()
    parser = Parser(name, DESCRIPTION.format(prog=name), PROGRAM_EXAMPLES)
    parser.usage = f"{name} [-h] [--version] COMMAND ..."
    parser.add_argument(
        "--version", action="version", version=f"pagedlab {__version__}", help="print the version"
    )
    return parser


def chat() -> Parser:
    """Return the parser of `pagedlab chat`."""
    parser = Parser(
        f"{program_name()} chat",
        "Talk to a model. Below each answer are the blocks that hold the conversation.",
        CHAT_EXAMPLES,
    )
    add_model_options(parser)
    _add_sampling_options(parser, max_tokens=256)
    add_pool_options(parser)
    add = parser.add_argument
    add("--system", metavar="TEXT", help="the system message; default: the model's own")
    add("--plain", action="store_true", help="plain text: no colours, and lines are not redrawn")
    return parser


def generate() -> Parser:
    """Return the parser of `pagedlab generate`."""
    parser = Parser(
        f"{program_name()} generate", "Continue prompts from a paged KV cache.", GENERATE_EXAMPLES
    )
    add = parser.add_argument
    add(
        "prompts",
        nargs="*",
        metavar="prompt",
        help="a text to continue; quote it; default: the text that a pipe sends",
    )
    add("--chat", action="store_true", help="send each prompt as a user's chat message")
    add_model_options(parser)
    _add_sampling_options(parser, max_tokens=64)
    add(
        "--top-p",
        type=number,
        default=1.0,
        help="sample from the likeliest tokens whose probabilities reach this sum; "
        "default: %(default)s, all tokens",
    )
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="a text that ends the answer and is not part of it; repeat it for several; "
        "default: none",
    )
    add_pool_options(parser)
    add(
        "--attention",
        default="auto",
        metavar="BACKEND",
        help=f"{', '.join(ATTENTION)}; concat joins all keys of a sequence, safe and "
        "online go block by block, in two passes and in one; default: auto, the fastest here",
    )
    add(
        "--ranks",
        type=whole_number,
        default=1,
        help="processes that share the model, a part each; default: %(default)s",
    )
    return parser


def download() -> Parser:
    """Return the parser of `pagedlab download`."""
    parser = Parser(
        f"{program_name()} download",
        "Fetch a model from the Hugging Face hub. Run it again to continue a download "
        "that was stopped.",
        DOWNLOAD_EXAMPLES,
    )
    parser.add_argument(
        "model", nargs="?", default=DEFAULT_MODEL, help="hub id; default: %(default)s"
    )
    return parser


def notebooks() -> Parser:
    """Return the parser of `pagedlab notebooks`."""
    parser = Parser(
        f"{program_name()} notebooks",
        "Copy the series into a folder of yours and open it in JupyterLab. Files that are there "
        "already stay as they are.",
        NOTEBOOKS_EXAMPLES,
    )
    add = parser.add_argument
    add("folder", nargs="?", default="pagedlab-notebooks", help="default: %(default)s")
    add("--no-open", action="store_true", help="copy the notebooks, and do not start JupyterLab")
    return parser


def info() -> Parser:
    """Return the parser of `pagedlab info`."""
    return Parser(
        f"{program_name()} info", "Print versions, devices, and the model that would answer."
    )


def _add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    add = parser.add_argument
    add(
        "--max-tokens",
        type=whole_number,
        default=max_tokens,
        help="new tokens of an answer, at most; default: %(default)s",
    )
    add(
        "--temperature",
        type=number,
        default=0.0,
        help="0 takes the likeliest token, 1 samples from the model's own probabilities; "
        "default: %(default)s",
    )
    add(
        "--seed",
        type=whole_number,
        help="equal seeds give equal samples; default: the engine's seed, 0",
    )


def sampling_params(asked: argparse.Namespace) -> SamplingParams:
    """Return the parameters that the sampling options of a command ask for."""
    further = {name: getattr(asked, name) for name in ("top_p", "stop") if name in asked}
    return SamplingParams(asked.max_tokens, asked.temperature, seed=asked.seed, **further)


def check_options(asked: argparse.Namespace) -> None:
    """Check the options before torch and the model are loaded.

    Raises:
        ValueError: Names the option whose value is not accepted.
    """
    check_model_options(asked)
    integer("--max-tokens", asked.max_tokens, 1)
    real("--temperature", asked.temperature, 0)
    if asked.seed is not None:
        integer("--seed", asked.seed)
    check_pool_options(asked)
    if "top_p" in asked:
        real("--top-p", asked.top_p, 0, 1, above=True)
    if not all(getattr(asked, "stop", ())):
        raise ValueError("--stop is empty: give a text, or leave the option out")
    if "attention" in asked:
        one_of("--attention", asked.attention, ATTENTION)
    if "ranks" in asked:
        integer("--ranks", asked.ranks, 1)
