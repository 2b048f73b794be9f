"""The examples in docstrings give what they say, and `pagedlab.<Tab>` lists what a user wants."""

import doctest

import pytest

import pagedlab
from pagedlab import LLM, SamplingParams
from pagedlab.blocks import BlockCopy
from pagedlab.scheduler import Chunk, Plan
from support.engines import exactly, sequence_of


@pytest.mark.parametrize("documented", [LLM, LLM.generate, SamplingParams], ids=lambda one: one.__qualname__)
def test_examples(documented):
    [test] = doctest.DocTestFinder(recurse=False).find(documented, documented.__qualname__)
    assert test.examples, "no example"
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert runner.run(test).failed == 0


def test_tab_lists_what_a_user_wants():
    assert {"LLM", "SamplingParams", "BlockPool", "spin_little"} - {*dir(pagedlab)} == {"spin_little"}


def test_an_engine_a_plan_and_a_completion_are_one_useful_line(tiny):
    llm = LLM(tiny, num_blocks=16, block_size=4, verbose=False)
    [completion] = llm.generate([5, 6, 7], exactly(2))
    assert repr(llm) == "LLM(tiny-qwen2, 16 blocks of 4, 0 requests unfinished)"
    text = completion.outputs[0].text
    output = f"Output({text!r}, 2 tokens, finish_reason='length')"
    assert repr(completion) == f"Completion(0, finished, 3 prompt tokens, [{output}])"
    sequence = sequence_of(llm.pool, [1, 2], request_id=7, nth=2)
    plan = Plan([Chunk(sequence, 0, 2)], [BlockCopy(1, 3)])
    said = (
        "Plan(chunks=[Chunk(sequence=r7.2, start=0, stop=2, guesses=())], copies=[BlockCopy(source=1, destination=3)]"
    )
    assert repr(plan).startswith(said)
