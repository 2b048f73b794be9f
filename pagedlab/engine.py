"""The engine: prompts in, texts out, every key and value in blocks between.

    request -> scheduler (blocks, copies) -> batch (flat tensors) -> model forward -> sampler -> request

A step runs one forward pass over a ragged batch: whole prompts, parts of prompts and single new tokens, one
after the other in one row, with no padding and no loop over requests around the model.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from pagedlab.attention import PagedAttention, get_backend
from pagedlab.blocks import BlockPool, BlockTable, Pool, blocks_for
from pagedlab.detokenizer import Detokenizer
from pagedlab.model import Batch, Model, load_model
from pagedlab.outputs import Completion, Output, Stats
from pagedlab.sampling import SamplingParams, sample
from pagedlab.scheduler import Chunk, Request, Scheduler, Sequence

Prompt = str | list[int] | list[dict[str, str]]
CPU_KV_BYTES = 1 << 30  # KV cache on a CPU unless num_blocks says otherwise; untouched blocks cost nothing
GPU_KV_SHARE = 0.8  # of the memory that is free once the model is loaded


class LLM:
    """A language model whose KV lives in blocks.

    model: a hub id, folder, .gguf file, or a `Model` already loaded; None for the default chain of
    `pagedlab.model.choose_model`. num_blocks: None for what fits. max_batch_tokens: tokens a forward pass.
    max_sequences: texts at once. attention_backend: a name, or a function with `paged_attention`'s
    parameters. block_pool and block_table: classes with `BlockPool`'s and `BlockTable`'s verbs, your own
    included. seed: where requests without a seed take theirs from.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        max_batch_tokens: int = 4096,
        max_sequences: int = 256,
        attention_backend: str | PagedAttention = "auto",
        block_pool: type[Any] = BlockPool,
        block_table: type[BlockTable] = BlockTable,
        seed: int = 0,
        verbose: bool = True,
    ) -> None:
        self._attend = get_backend(attention_backend)
        BlockPool(1, block_size)  # says what is wrong with a block size, before a model is loaded
        self.model = model if isinstance(model, Model) else load_model(model, device, dtype, verbose)
        cache = self.model.kv_cache(1, block_size)
        if num_blocks is None:
            num_blocks = self._blocks_that_fit(cache.bytes_per_block, block_size, max_sequences)
        self.pool: Pool = block_pool(num_blocks, block_size)
        missing = [
            verb for verb in ("allocate", "share", "release", "refcount", "num_free") if not hasattr(self.pool, verb)
        ]
        if missing:
            raise ValueError(f"{block_pool.__name__} cannot serve as a block pool: it lacks {', '.join(missing)}")
        self.cache = self.model.kv_cache(num_blocks, block_size)
        self.scheduler = Scheduler(self.pool, max_batch_tokens, max_sequences)
        self.stats = Stats(num_blocks, cache.bytes_per_block)
        self.seed = seed
        self._new_table = block_table
        self._ids = itertools.count()
        self._live: dict[int, tuple[Request, Completion, SamplingParams]] = {}
        self._callbacks: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ whole texts

    def generate(
        self, prompts: Prompt | list[Prompt], sampling: SamplingParams | list[SamplingParams] | None = None
    ) -> list[Completion]:
        """Continue every prompt, all in one ragged batch, and return one completion each, in order.

        A prompt is a text, a list of token ids, or a list of chat messages ({"role": ..., "content": ...}).
        `sampling` is for all of them, or a list with one each. `ValueError` names the first bad prompt, and
        then none has been started.
        """
        batch: list[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        params = sampling if isinstance(sampling, list) else [sampling or SamplingParams()] * len(batch)
        if len(params) != len(batch):
            raise ValueError(f"{len(batch)} prompts and {len(params)} SamplingParams: give one for all, or one each")
        added: list[Completion] = []
        try:
            for i, (prompt, p) in enumerate(zip(batch, params, strict=True)):
                try:
                    added.append(self._live[self.add(prompt, p)][1])
                except ValueError as error:
                    raise ValueError(f"prompt {i}: {error}" if len(batch) > 1 else str(error)) from None
            while not all(completion.finished for completion in added):
                self.step()
        finally:
            self._abort_all(added)
        return added

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Iterator[str]:
        """Yield the text of one prompt piece by piece. Leaving the loop early aborts the request."""
        params = sampling or SamplingParams()
        if params.n > 1:
            raise ValueError(f"stream yields one text, so n must be 1, got {params.n}; use add and step for several")
        request_id = self.add(prompt, params, stream=True)
        return self._pieces(self._live[request_id][1])

    def _pieces(self, completion: Completion) -> Iterator[str]:
        (output,) = completion.outputs
        detokenizer = output._detokenizer
        assert detokenizer is not None
        try:
            while not completion.finished:
                self.step()
                if piece := detokenizer.take(completion.finished):
                    yield piece
        finally:
            self._abort_all([completion])

    # ------------------------------------------------------------------ step by step

    def add(self, prompt: Prompt, sampling: SamplingParams | None = None, *, stream: bool = False) -> int:
        """Queue a prompt and return its request id. `ValueError`, with nothing queued, if it cannot be served."""
        params = sampling or SamplingParams()
        ids = self._checked(self.model.encode(prompt))
        room = self.model.max_length - len(ids)
        request_id = next(self._ids)
        first_seed = params.seed if params.seed is not None else self.seed * 1_000_003 + request_id
        first = Sequence(f"r{request_id}", self._new_table(self.pool), ids, first_seed, len(ids))
        request = Request(request_id, [first], params.n, min(params.max_tokens, room))
        if not self._live:
            self.stats = Stats(self.stats.num_blocks, self.stats.bytes_per_block)
        self.scheduler.add(request)
        output = self._output(first, params, stream)
        self._live[request_id] = (request, Completion(request_id, ids[:], [output]), params)
        return request_id

    def step(self) -> list[Completion]:
        """Run one forward pass and return the completions it touched; `finished` tells which are done."""
        began = time.perf_counter()
        plan = self.scheduler.schedule()
        if not plan.chunks:
            return []
        self.cache.copy_blocks(plan.copies)
        self.stats.blocks_peak = max(self.stats.blocks_peak, self._used())
        sampled = self._fork_samples(plan.chunks)
        logits = self.model.forward(self._batch(plan.chunks, sampled), self.cache, self._attend)
        tokens, logprobs = self._sample(logits, sampled)
        for (_, request, sequence), token, logprob in zip(sampled, tokens, logprobs, strict=True):
            self._extend(request, sequence, token, logprob)
        touched = {chunk.request.request_id: self._live[chunk.request.request_id][1] for chunk in plan.chunks}
        for request_id, completion in touched.items():
            if completion.finished:
                self.scheduler.remove(self._live.pop(request_id)[0])
        self.stats.steps += 1
        self.stats.prompt_tokens += sum(
            min(c.stop, c.sequence.num_prompt_tokens) - min(c.start, c.sequence.num_prompt_tokens) for c in plan.chunks
        )
        self.stats.output_tokens += len(tokens)
        self.stats.blocks_used = self._used()
        self.stats.seconds += time.perf_counter() - began
        for callback in tuple(self._callbacks):
            callback()
        return list(touched.values())

    def abort(self, request_id: int) -> None:
        """Stop a request wherever it is and free its blocks. Unknown and finished ids are ignored."""
        if request_id not in self._live:
            return
        request = self._live.pop(request_id)[0]
        for sequence in request.unfinished:
            sequence.finish_reason = "abort"
        self.scheduler.remove(request)
        self.stats.blocks_used = self._used()

    # ------------------------------------------------------------------ for those who watch

    def on_step(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every step from now on; the function returned stops it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def sequences(self) -> list[Sequence]:
        """The texts that hold blocks now, with `name`, `table` and `token_ids`."""
        return [s for r in self.scheduler.running for s in r.sequences if s.table.block_ids]

    def decode(self, token_ids: list[int]) -> str:
        """The text of these tokens, without special ones."""
        return self.model.decode(token_ids)

    # ------------------------------------------------------------------ inside a step

    def _fork_samples(self, chunks: list[Chunk]) -> list[tuple[int, Request, Sequence]]:
        """Who gets a token from this pass: (row of the batch, request, sequence).

        A prompt that is complete with this pass and asks for n texts becomes n sequences here: forks of its
        table, all of which take their first token from the same row.
        """
        sampled = []
        row = 0
        for request, sequence, start, stop in chunks:
            row += stop - start
            if stop < len(sequence.token_ids):
                continue
            writers = [sequence]
            if len(request.sequences) < request.num_samples:
                writers += self._forks(request, sequence)
            sampled += [(row - 1, request, writer) for writer in writers]
        return sampled

    def _forks(self, request: Request, first: Sequence) -> list[Sequence]:
        _, completion, params = self._live[request.request_id]
        forks = []
        for i in range(1, request.num_samples):
            fork = Sequence(
                f"{first.name}.{i}", first.table.fork(), first.token_ids[:], first.seed + i, first.num_prompt_tokens
            )
            request.sequences.append(fork)
            completion.outputs.append(self._output(fork, params, stream=False))
            forks.append(fork)
        return forks

    def _batch(self, chunks: list[Chunk], sampled: list[tuple[int, Request, Sequence]]) -> Batch:
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        tables = np.zeros((len(chunks), max(len(c.sequence.table.block_ids) for c in chunks)), np.int32)
        for b, (_, sequence, start, stop) in enumerate(chunks):
            token_ids += sequence.token_ids[start:stop]
            positions += range(start, stop)
            slots += sequence.table.slots(start, stop)
            tables[b, : len(sequence.table.block_ids)] = sequence.table.block_ids
        query_starts = list(itertools.accumulate((c.stop - c.start for c in chunks), initial=0))
        device = self.model.device

        def integers(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

        return Batch(
            token_ids=integers(token_ids),
            positions=integers(positions),
            slots=integers(slots),
            block_tables=torch.from_numpy(tables).to(device, non_blocking=True),
            seq_lens=integers([c.stop for c in chunks], torch.int32),
            query_starts=integers(query_starts, torch.int32),
            last_rows=integers([row for row, _, _ in sampled]),
        )

    def _sample(
        self, logits: torch.Tensor, sampled: list[tuple[int, Request, Sequence]]
    ) -> tuple[list[int], list[float]]:
        params = [self._live[request.request_id][2] for _, request, _ in sampled]
        seeds = torch.tensor([s.seed for _, _, s in sampled], device=logits.device)
        positions = torch.tensor([len(s.token_ids) for _, _, s in sampled], device=logits.device)
        tokens, logprobs = sample(logits, params, seeds, positions)
        return tokens.tolist(), logprobs.tolist()

    def _extend(self, request: Request, sequence: Sequence, token: int, logprob: float) -> None:
        """Add the new token to its text, and end the text if that was its last."""
        _, completion, params = self._live[request.request_id]
        output = completion.outputs[request.sequences.index(sequence)]
        sequence.token_ids.append(token)
        sequence.cumulative_logprob += logprob
        detokenizer = output._detokenizer
        ended = token in self.model.eos_token_ids and not params.ignore_eos
        if detokenizer and not ended:
            detokenizer.push(token)
            ended = detokenizer.stopped
        if ended:
            sequence.finish_reason = "stop"
        elif len(sequence.token_ids) - sequence.num_prompt_tokens >= request.max_tokens:
            sequence.finish_reason = "length"
        if sequence.finish_reason:
            if detokenizer:
                detokenizer.finish(self.decode(sequence.output_ids))
            sequence.table.free()

    # ------------------------------------------------------------------ small things

    def _output(self, sequence: Sequence, params: SamplingParams, stream: bool) -> Output:
        needs_text = stream or params.stop
        detokenizer = Detokenizer(self.model.tokenizer, tuple(params.stop)) if needs_text else None
        return Output(sequence, detokenizer, self.decode)

    def _checked(self, ids: Iterable[int]) -> list[int]:
        try:
            ids = [operator.index(i) for i in ids]
        except TypeError:
            raise ValueError(
                "a prompt is a text, a list of whole numbers (token ids), or a list of chat messages"
            ) from None
        if not ids:
            raise ValueError("the prompt is empty: give at least one token to continue")
        outside = [i for i in ids if not 0 <= i < self.model.vocab_size]
        if outside:
            raise ValueError(
                f"token id {outside[0]} is not in the vocabulary: ids go from 0 to {self.model.vocab_size - 1}"
            )
        if len(ids) >= self.model.max_length:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and {self.model.name} takes {self.model.max_length}, "
                "new ones included: shorten it"
            )
        return ids

    def _used(self) -> int:
        return self.pool.num_blocks - self.pool.num_free

    def _abort_all(self, completions: list[Completion]) -> None:
        for completion in completions:
            self.abort(completion.request_id)

    def _blocks_that_fit(self, bytes_per_block: int, block_size: int, max_sequences: int) -> int:
        useful = max_sequences * blocks_for(self.model.max_length, block_size)
        if self.model.device.type == "cuda":
            memory = int(GPU_KV_SHARE * torch.cuda.mem_get_info(self.model.device)[0])
        else:
            memory = CPU_KV_BYTES
        return max(1, min(useful, memory // bytes_per_block))


def _is_one_prompt(prompts: Any) -> bool:
    """A text, a list of ids and a list of messages are one prompt; a list of any of these is several."""
    if isinstance(prompts, str):
        return True
    return len(prompts) > 0 and isinstance(prompts[0], (dict, int, np.integer))
