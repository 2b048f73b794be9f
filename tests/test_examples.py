"""The examples in docstrings give what they say, and `pagedlab.<Tab>` lists what a user wants."""

import doctest

import pytest

import pagedlab
from pagedlab import LLM, SamplingParams
from pagedlab.blocks import BlockCopy, BlockTable
from pagedlab.scheduler import Chunk, Preemption, Request, Schedule
from pagedlab.sequence import Sequence
from support.engines import exactly


@pytest.mark.parametrize("documented", [LLM, LLM.generate, SamplingParams], ids=lambda one: one.__qualname__)
def test_examples(documented):
    [test] = doctest.DocTestFinder(recurse=False).find(documented, documented.__qualname__)
    assert test.examples, "no example"
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert runner.run(test).failed == 0


def test_tab_lists_what_a_user_wants():
    listed = dir(pagedlab)
    assert {"LLM", "SamplingParams", "BlockPool", "BlockTable", "PrefixCache", "KVCache", "paged_attention"} <= {
        *listed
    }
    assert not {"annotations", "import_module", "spin_little", "TYPE_CHECKING"} & {*listed}
    assert all(hasattr(pagedlab, name) for name in listed)


def test_an_engine_a_plan_and_a_completion_are_one_useful_line(tiny):
    llm = LLM(tiny, num_blocks=16, block_size=4, verbose=False)
    [completion] = llm.generate([5, 6, 7], exactly(2))
    assert repr(llm) == "LLM(tiny-qwen2, 16 blocks of 4, 0 requests unfinished)"
    text = completion.outputs[0].text
    output = f"Output({text!r}, 2 tokens, finish_reason='length')"
    assert repr(completion) == f"Completion(0, finished, 3 prompt tokens, [{output}])"
    assert repr(llm.plan) == "Schedule(computes r0[3:4])"
    seq = Sequence("r7", BlockTable(llm.pool), [1, 2], 0, 2)
    request = Request(7, [seq], 1, 4)
    plan = Schedule([Chunk(request, seq, 0, 2)], [BlockCopy(1, 3)], [request], [Preemption(request, "swap")])
    assert repr(plan) == "Schedule(computes r7[0:2]; copies block 1 to 3; admits r7; preempts r7 by swap)"
    assert repr(Schedule()) == "Schedule(computes nothing)"
