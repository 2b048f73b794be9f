"""Engines with poisoned caches, prompts for them, and what must hold when they are done."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pagedlab import LLM, BlockPool, Completion, KVCache, SamplingParams
from pagedlab.blocks import BlockTable
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.scheduler import Scheduler, Sequence

if TYPE_CHECKING:
    from pagedlab.model import Model

TEXT = """The library at the end of the street keeps its books on shelves of sixteen. When a reader asks for a story,
the librarian does not look for one long free shelf. She puts the first pages on any shelf that has room,
the next pages on another, and writes down in a small table which shelf comes first and which comes next.
Nobody who reads the story notices. When two readers want the same story, she gives both of them the same
shelves and makes a mark beside each: two are reading here. Only when one of them wants to write an ending
of his own does she copy the last shelf, so that the other one keeps what was there. In the evening, when
the readers have gone home, she takes the marks away one by one, and every shelf without a mark is free
again. A boy once asked her why she did not keep a whole row for each story, as the old librarian had done.
She laughed and showed him the old plan of the house. Most of the rows had been reserved for stories that
were never told, and people had stood outside in the rain while half of the shelves were empty."""
LENGTHS = [3, 17, 31, 40, 9, 64, 48, 5]
NEW = 24
SCHEDULERS = [Scheduler, SwappingScheduler]


def prompts_of(model: Model, lengths: list[int]):
    """Prompts of these lengths, each from another place of the text."""
    ids = model.encode(TEXT)
    assert len(ids) > max(lengths) + 7 * len(lengths), "the text is too short for these prompts"
    return [ids[7 * i : 7 * i + n] for i, n in enumerate(lengths)]


def prompt_of(model: Model, length: int, offset: int = 0):
    """So many tokens of the text, which begins anew behind its end."""
    return (3 * model.encode(TEXT))[offset : offset + length]


def poison(cache: KVCache):
    """Fill a cache with NaN."""
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)


def engine(model: Model, num_blocks: int = 256, block_size: int = 16, kind=LLM, **options):
    """An engine whose cache is full of NaN."""
    llm = kind(model, num_blocks=num_blocks, block_size=block_size, **options)
    poison(llm.cache)
    return llm


def breaking_at(model: Model, token: int):
    """The model with NaN in place of this token's embedding: no logits behind it are finite."""
    module = deepcopy(model.module)
    weight = module.get_input_embeddings().weight.detach().clone()
    weight[token] = torch.nan
    module.get_input_embeddings().weight = torch.nn.Parameter(weight, requires_grad=False)
    return replace(model, module=module)


def broken_by(token: int, answer: list[int]):
    """Token ids and finish reason of an answer whose model is `breaking_at` this token."""
    end = answer.index(token) + 1 if token in answer[:-1] else len(answer)
    return answer[:end], "length" if end == len(answer) else "error"


def sequence_of(pool, token_ids: list[int], request_id: int = 0, **options):
    """A sequence that no engine knows."""
    params = options.pop("params", SamplingParams(max_tokens=options.get("max_tokens", 1)))
    given = {"num_prompt_tokens": len(token_ids), "params": params, "max_tokens": params.max_tokens} | options
    return Sequence(request_id, BlockTable(pool), token_ids, **given)


def plain_logits(model: Model, token_ids: list[int]):
    """Logits [T, V] of transformers' own forward pass, without a cache."""
    with model.stock_attention() as module, torch.inference_mode():
        return module(input_ids=torch.tensor([token_ids], device=model.device)).logits[0]


def finished(completions: list[Completion]):
    """Those that are finished, by request id."""
    return {completion.request_id: completion for completion in completions if completion.finished}


def assert_idle(llm: LLM):
    """Assert that nothing runs, nothing waits and every block is free."""
    llm.step()  # after a reset, it returns what was dropped
    assert llm.step() == []
    assert not any(llm.scheduler.queues().values())
    assert llm.sequences() == []
    assert llm.pool.num_free == llm.pool.num_blocks
    if isinstance(llm.pool, BlockPool):
        llm.pool.check([])


def ids_of(completions: list[Completion]):
    """Token ids of the first output of every completion."""
    return [completion.outputs[0].token_ids for completion in completions]


def output_of(llm: LLM, prompt, sampling: SamplingParams):
    """The first output of this prompt."""
    return llm.generate(prompt, sampling)[0].outputs[0]


def all_ids_of(completions: list[Completion]):
    """Token ids of every output of every completion."""
    return [[output.token_ids for output in completion.outputs] for completion in completions]


def texts_of(completions: list[Completion]):
    """Token ids and finish reason of every output of every completion."""
    return [[(output.token_ids, output.finish_reason) for output in completion.outputs] for completion in completions]


def exactly(num_tokens: int, **options):
    """Parameters of texts with that many tokens: the end of text does not end them."""
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **options)


def drain(llm: LLM):
    """Step until the engine is idle and return the finished completions by request id."""
    done: dict[int, Completion] = {}
    while touched := llm.step():
        done |= finished(touched)
    return done


def come_and_go(llm: LLM, prompts: list[list[int]], params: list[SamplingParams], texts, rng: random.Random):
    """Add requests between steps and abort some, at random: the others must get these texts."""
    todo, ids, done, aborted = list(range(len(prompts))), {}, {}, set()
    while todo or llm.num_unfinished:
        if todo and rng.random() < 0.5:
            i = todo.pop(0)
            ids[llm.add(prompts[i], params[i])] = i
        done |= {ids[completion.request_id]: completion for completion in llm.step() if completion.finished}
        if ids and rng.random() < 0.15 and ids[request_id := rng.choice(list(ids))] not in done:
            llm.abort(request_id)
            aborted.add(ids[request_id])
    for i, completion in done.items():
        assert texts_of([completion]) == [texts[i]], i
    assert sorted(done) == [i for i in range(len(prompts)) if i not in aborted]
    assert_idle(llm)
