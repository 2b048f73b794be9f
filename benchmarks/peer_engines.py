"""One engine in a process of its own: `peers.py` starts this file and sends it requests.

Every engine has its documented defaults, and the options that equal conditions need: the longest
sequence, the number of sequences at once, the share of the card's memory, the seed. They are
returned with the first answer. On several GPUs the ranks sum by what needs no NVLink multicast,
which a shared host may forbid: NCCL, or an engine's own kernels over peers' memory.

Every time is taken in the caller's thread: before the call that hands the requests over, and after
the call that returns the last token.

Commands are lines of JSON on standard input. Answers are lines of JSON on the descriptor that the
second argument names, because engines write to standard output themselves. The last argument is
JSON, too: what an engine's class is called with.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from bisect import bisect_right
from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import peer_workloads
from common import quantiles
from peer_workloads import TEMPERATURE, WORKLOADS, Arrival, Work, arrivals

MAX_LENGTH = 16_384
MAX_SEQUENCES = 256
CONTEXT_BYTES = 650 << 20  # of a card's memory, that a process takes before its first tensor (an H100)
Options = dict[str, Any]  # of an engine
Answers = list[list[list[int]]]  # token ids: of each prompt, of each answer
Pieces = AsyncIterator[tuple[float, int]]  # when tokens reached the caller, and how many


class PagedLab:
    """`pagedlab_fast.LLM`, through `generate`, and through the server's thread where requests arrive."""

    def __init__(self, model: str, random_weights: bool, share: float, ranks: int, further: Options) -> None:
        import torch

        from pagedlab import SamplingParams
        from pagedlab.engine import GPU_MEMORY
        from pagedlab.recipes.penalties import Penalties
        from pagedlab_fast import LLM
        from pagedlab_serve.engine_thread import EngineThread, Ticket
        from pagedlab_serve.prompts import Encoder

        # Imported here: the import takes a second, which no request may wait.
        self.sampling, self.penalties = SamplingParams, Penalties
        self.new_thread, self.new_ticket, self.new_encoder = EngineThread, Ticket, Encoder
        self.options = {"max_sequences": MAX_SEQUENCES, "ranks": ranks} | further
        source: Any = random_model(model) if random_weights else model
        occupied = None
        if torch.cuda.is_available():
            # The engine takes GPU_MEMORY of what is free: the rest of the card is occupied meanwhile.
            free, total = torch.cuda.mem_get_info()
            left = share * total - CONTEXT_BYTES - torch.cuda.memory_reserved()
            occupied = torch.empty(int(max(0, free - left / GPU_MEMORY)), dtype=torch.uint8, device="cuda")
        self.llm = LLM(source, **self.options)
        del occupied
        torch.cuda.empty_cache()
        self.llm.warm_up()
        self.thread: Any = None

    def params(self, length: int, temperature: float, ends: bool = False, n: int = 1) -> Any:
        how = how_to_sample(temperature)
        if "repetition_penalty" in how:
            how["adjust"] = self.penalties(repetition=how.pop("repetition_penalty"))
        return self.sampling(max_tokens=length, ignore_eos=not ends, n=n, **how)

    def generate(self, work: Work) -> Answers:
        params = [self.params(length, work.temperature, work.ends, work.answers) for length in work.lengths]
        done = self.llm.generate(work.prompts, params)
        return [[output.token_ids for output in completion.outputs] for completion in done]

    async def stream(self, request: Arrival) -> Pieces:
        """The caller reads text. The tokens of a piece are those that the engine had finished."""
        if self.thread is None:
            self.encoder = self.new_encoder(self.llm.model)
            self.thread = self.new_thread(self.llm, max_waiting=100_000)
            self.thread.start()
        params = self.params(request.length, TEMPERATURE)
        ticket = self.new_ticket(self.thread, params, True)
        ids = await self.encoder.encode([request.prompt])
        await self.thread.submit(ticket, ids, None)
        came = []
        async for _ in ticket:
            came.append(time.perf_counter())
        came.append(time.perf_counter())  # the end of the stream brings what had no text of its own
        finished = ticket.completions[0].times
        ticket.close()
        seen = 0
        for moment in came:
            count = bisect_right(finished, moment) - seen
            seen += count
            if count:
                yield moment, count


def random_model(folder: str) -> Any:
    """As `pagedlab.model.load_model`, with weights that are drawn on the card."""
    import torch
    import transformers

    from pagedlab.model import Model, paged_hook

    transformers.AttentionInterface.register("pagedlab", paged_hook)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kind = {"dtype": torch.bfloat16, "attn_implementation": "pagedlab"}
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        module = transformers.AutoModelForCausalLM.from_config(config, **kind).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return Model(module, tokenizer, Path(folder).name)


class VLLM:
    """vLLM, through `LLM.generate` with its engine in a process of its own, as by default."""

    def __init__(self, model: str, random_weights: bool, share: float, ranks: int, further: Options) -> None:
        self.options: Options = {
            "max_model_len": MAX_LENGTH,
            "max_num_seqs": MAX_SEQUENCES,
            "gpu_memory_utilization": share,
            "seed": 0,
            "tensor_parallel_size": ranks,
        }
        if ranks > 1:  # FlashInfer's sum, fused with the norm, is by multicast
            self.options["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
        if random_weights:
            self.options["load_format"] = "dummy"
        self.options |= further
        self.engine = self.start(model)

    def start(self, model: str) -> Any:
        from vllm import LLM

        return LLM(model, **self.options)

    def params(self, length: int, temperature: float, ends: bool = False, **more: Any) -> Any:
        from vllm import SamplingParams

        how = how_to_sample(temperature)
        return SamplingParams(max_tokens=length, ignore_eos=not ends, detokenize=False, **how, **more)

    def generate(self, work: Work) -> Answers:
        params = [self.params(length, work.temperature, work.ends, n=work.answers) for length in work.lengths]
        prompts = [{"prompt_token_ids": prompt} for prompt in work.prompts]
        done = self.engine.generate(prompts, params, use_tqdm=False)
        return [[list(output.token_ids) for output in answer.outputs] for answer in done]


class VLLMServer(VLLM):
    """vLLM's `AsyncLLM`, which its server uses: for requests that arrive."""

    def start(self, model: str) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        args = AsyncEngineArgs(model=model, **self.options)
        # With this context it has the server's defaults, among them 8,192 tokens a step on an H200.
        return AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)

    async def stream(self, request: Arrival) -> Pieces:
        from vllm.sampling_params import RequestOutputKind

        params = self.params(request.length, TEMPERATURE, output_kind=RequestOutputKind.DELTA)
        prompt = {"prompt_token_ids": request.prompt}
        async for output in self.engine.generate(prompt, params, uuid4().hex):
            count = len(output.outputs[0].token_ids)
            if count:
                yield time.perf_counter(), count


class SGLang:
    """SGLang's `Engine`, for both."""

    def __init__(self, model: str, random_weights: bool, share: float, ranks: int, further: Options) -> None:
        import sglang

        self.options: Options = {
            "dtype": "bfloat16",
            "context_length": MAX_LENGTH,
            "max_running_requests": MAX_SEQUENCES,
            "mem_fraction_static": share,
            "skip_tokenizer_init": True,
            "grammar_backend": "none",
            "log_level": "error",
            "incremental_streaming_output": True,
            "random_seed": 0,
            "tp_size": ranks,
        }
        if ranks > 1:  # FlashInfer's sum, fused with the norm, is by multicast
            self.options["enforce_disable_flashinfer_allreduce_fusion"] = True
        if random_weights:
            self.options["load_format"] = "dummy"
        self.options |= further
        self.llm = sglang.Engine(model_path=model, **self.options)

    def generate(self, work: Work) -> Answers:
        params = [
            {"max_new_tokens": n, "ignore_eos": not work.ends, "n": work.answers} | how_to_sample(work.temperature)
            for n in work.lengths
        ]
        done = self.llm.generate(input_ids=work.prompts, sampling_params=params)
        flat = [list(answer["output_ids"]) for answer in done]
        return [flat[at : at + work.answers] for at in range(0, len(flat), work.answers)]

    async def stream(self, request: Arrival) -> Pieces:
        params = {"max_new_tokens": request.length, "ignore_eos": True} | how_to_sample(TEMPERATURE)
        pieces = await self.llm.async_generate(input_ids=request.prompt, sampling_params=params, stream=True)
        seen = 0
        async for piece in pieces:
            count = piece["meta_info"]["completion_tokens"] - seen
            seen += count
            if count > 0:
                yield time.perf_counter(), count


class NanoVLLM:
    """nano-vllm. It has neither greedy sampling nor several answers."""

    def __init__(self, model: str, random_weights: bool, share: float, ranks: int, further: Options) -> None:
        from nanovllm import LLM, SamplingParams

        self.params = SamplingParams
        self.options = {
            "max_model_len": MAX_LENGTH,
            "max_num_seqs": MAX_SEQUENCES,
            "gpu_memory_utilization": share,
        } | further
        self.llm = LLM(model, **self.options)
        if random_weights:
            for parameter in self.llm.model_runner.model.parameters():
                parameter.data.normal_(0, 0.02)

    def generate(self, work: Work) -> Answers:
        if work.answers > 1 or work.temperature == 0:
            raise NotImplementedError("nano-vllm has neither several answers nor greedy sampling")
        params = [
            self.params(max_tokens=n, ignore_eos=not work.ends, temperature=work.temperature) for n in work.lengths
        ]
        done = self.llm.generate([list(prompt) for prompt in work.prompts], params, use_tqdm=False)
        return [[list(answer["token_ids"])] for answer in done]


ENGINES = {
    "pagedlab": PagedLab,
    "vllm": VLLM,
    "vllm-server": VLLMServer,
    "sglang": SGLang,
    "nano-vllm": NanoVLLM,
}
WITH_UVLOOP = ("vllm-server", "sglang")  # their servers' event loop, where it is installed


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "source"


def how_to_sample(temperature: float) -> Options:
    """All engines have the same names for it."""
    return {"temperature": temperature, **peer_workloads.LIMITS}


def timed(engine: Any, work: Work) -> tuple[float, Answers]:
    """Seconds from the call to its return, and the answers, whose lengths are checked."""
    began = time.perf_counter()
    answers = engine.generate(work)
    seconds = time.perf_counter() - began
    lengths = [[len(answer) for answer in each] for each in answers]
    if work.ends:  # an answer may be shorter, but not empty
        lengths = [[max(n, limit) if n else 0 for n in each] for each, limit in zip(lengths, work.lengths, strict=True)]
    if lengths != [[length] * work.answers for length in work.lengths]:
        raise RuntimeError("a request did not get the tokens that it asked for")
    return seconds, answers


def chat_prompts(texts: list[str], model: str) -> list[list[int]]:
    """Token ids of questions, in the chat format of Qwen."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    form = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(form.format(text)).ids for text in texts]


def measure(engine: Any, name: str, seed: int, model: str) -> dict[str, Any]:
    """Run a workload: its figure, and the seconds of each of its works."""
    workload = WORKLOADS[name](seed)
    works = workload.rounds
    for work in works:
        work.prompts = work.prompts or chat_prompts(work.texts, model)
    seconds = []
    num_tokens = 0
    before: list[list[int]] = [[] for _ in works[0].prompts]
    for work in works:
        if workload.continues:
            work.prompts = [old + new for old, new in zip(before, work.prompts, strict=True)]
        spent, answers = timed(engine, work)
        seconds.append(spent)
        num_tokens += sum(len(answer) for each in answers for answer in each)
        before = [old + new[0] for old, new in zip(work.prompts, answers, strict=True)]
    if workload.unit == "ms a token":
        figure = 1000 * (seconds[1] - seconds[0]) / (works[1].lengths[0] - works[0].lengths[0])
    elif workload.unit == "prompt tokens/s":
        figure = sum(len(prompt) for work in works for prompt in work.prompts) / sum(seconds)
    else:
        figure = num_tokens / sum(seconds)
    return {"figure": figure, "unit": workload.unit, "seconds": seconds, "new tokens": num_tokens}


async def serve(engine: Any, rate: float, seed: int, least: int) -> dict[str, Any]:
    """Send requests when they are due: what their callers see, in milliseconds."""
    requests = arrivals(rate, seed, least)
    gc.collect()
    gc.freeze()  # no engine's callers pause for what was there before
    origin = time.perf_counter() + 0.5

    async def one(request: Arrival) -> list[tuple[float, int]]:
        await asyncio.sleep(max(0.0, origin + request.due - time.perf_counter()))
        pieces = [piece async for piece in engine.stream(request)]
        if sum(count for _, count in pieces) != request.length:
            raise RuntimeError("a request did not get the tokens that it asked for")
        return pieces

    streams = await asyncio.gather(*[one(request) for request in requests])
    first, each, gaps = [], [], []
    for request, pieces in zip(requests, streams, strict=True):
        first.append(pieces[0][0] - origin - request.due)
        gaps.append(max((b[0] - a[0] for a, b in pairwise(pieces)), default=0.0))
        later = request.length - pieces[0][1]
        if later:
            each.append((pieces[-1][0] - pieces[0][0]) / later)
    end = max(pieces[-1][0] for pieces in streams)
    new_tokens = sum(request.length for request in requests)
    return {
        "requests": len(requests),
        "offered tokens/s": rate * new_tokens / len(requests),
        "output tokens/s": new_tokens / (end - origin - requests[0].due),
        **quantiles("first token ms", first),
        **quantiles("a token ms", each),
        **quantiles("longest gap ms", gaps),
    }


def main() -> None:
    name, descriptor, vocabulary, settings = sys.argv[1:5]
    options = json.loads(settings)
    if options["ranks"] > 1 and name == "nano-vllm":
        raise NotImplementedError(f"{name} is measured here on one GPU only")
    peer_workloads.VOCABULARY = int(vocabulary)
    peer_workloads.LIMITS = options.pop("limits")
    answers = os.fdopen(int(descriptor), "w", buffering=1)

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    began = time.perf_counter()
    engine = ENGINES[name](**options)
    package = name.removesuffix("-server")
    versions = {package: version_of(package)}
    loop = asyncio.new_event_loop()
    if name in WITH_UVLOOP and find_spec("uvloop"):
        import uvloop

        loop = uvloop.new_event_loop()
        versions["uvloop"] = version_of("uvloop")
    say(start_s=time.perf_counter() - began, options=engine.options, versions=versions)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "rate" in command:
                answer = loop.run_until_complete(serve(engine, **command))
            else:
                answer = measure(engine, **command, model=options["model"])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(**answer)
    os._exit(0)


if __name__ == "__main__":
    main()
