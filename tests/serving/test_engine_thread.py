"""The thread that owns an engine: its tickets, its settings, and what it does when something fails."""

import asyncio
import gc
import sys
from contextlib import contextmanager

import pytest

from pagedlab import LLM, BlockPool
from pagedlab.recipes.logprobs import score
from pagedlab_serve.engine_thread import NEVER, SWITCH, EngineError, EngineThread, Ticket
from support.engines import assert_idle, exactly
from support.faults import Fault, raising_at
from support.waiting import until


async def submitted(engine, params, ids=(7, 8)):
    ticket = Ticket(engine, params, stream=True)
    await engine.submit(ticket, [list(ids)], None)
    return ticket


async def read(ticket):
    """What ends the pieces of a ticket, "ok" or the error."""
    try:
        await asyncio.wait_for(ticket.end(), 30)
    except EngineError as error:
        return str(error)
    return "ok"


@contextmanager
def started(llm):
    engine = EngineThread(llm)
    engine.start()
    yield engine
    engine.stop()


def test_who_waits_hears_of_a_failure_between_two_steps(tiny):
    """A prompt that is scored fails, and the next client's request is added before a step could say so."""
    llm = LLM(tiny, num_blocks=200)

    def score_in_vain(llm):
        llm.forward = raising_at(0, llm.forward)
        score(llm, [5] * 50)

    async def run(engine):
        first = await submitted(engine, exactly(400))
        await asyncio.sleep(0.05)
        second = Ticket(engine, exactly(30), True)
        scored, added = engine.call(score_in_vain), engine.submit(second, [[8, 9]], None)
        failed, _ = await asyncio.gather(scored, added, return_exceptions=True)
        return failed, await read(first), await read(second)

    with started(llm) as engine:
        failed, first, second = asyncio.run(run(engine))
    assert isinstance(failed, Fault)
    assert "was reset" in first
    assert second == "ok"
    assert_idle(llm)


def test_a_pool_that_cannot_be_made_again_leaves_nobody_waiting(tiny):
    left = [0]

    class Fails(BlockPool):
        def __init__(self, *arguments):
            left[0] -= 1
            if left[0] >= 0:
                raise MemoryError("no pool")
            super().__init__(*arguments)

    llm = LLM(tiny, num_blocks=200, block_pool=Fails)

    async def run(engine):
        tickets = [await submitted(engine, exactly(400)) for _ in range(2)]
        await asyncio.sleep(0.05)
        left[0] = 3
        llm.forward = raising_at(0, llm.forward, RuntimeError("no memory"))
        said = [await read(each) for each in tickets]
        left[0] = 0
        return [*said, await read(await submitted(engine, exactly(3)))]

    with started(llm) as engine:
        *failed, again = asyncio.run(run(engine))
    assert ["no memory" in said for said in failed] == [True, True]
    assert again == "ok"


def test_an_engine_has_one_owner_and_the_last_of_several_restores_the_settings_of_the_process(tiny):
    def settings():
        return sys.getswitchinterval(), gc.get_threshold()

    usual = settings()
    tuned = SWITCH, (*usual[1][:2], NEVER)
    llm = LLM(tiny, num_blocks=8)
    with started(llm):
        with pytest.raises(RuntimeError, match="served already"):
            EngineThread(llm).start()
        with started(LLM(tiny, num_blocks=8)):
            until(lambda: settings() == tuned)
        assert settings() == tuned
    assert settings() == usual
    with started(llm):
        pass


def test_pieces_that_came_while_the_loop_was_busy_are_one_by_then(tiny):
    """The loop sleeps through the whole text: it gets it in one piece, all of it, with its tokens."""

    async def heard(engine):
        ticket = await submitted(engine, exactly(40, logprobs=0))
        until(lambda: not engine.running and not engine.waiting)  # nothing else runs in the loop
        items = [item async for item in ticket]
        return items, ticket.completions[0].outputs[0].text

    with started(LLM(tiny, num_blocks=64)) as engine:
        ((piece,),), text = asyncio.run(heard(engine))
    assert (piece.text, piece.finish_reason) == (text, "length")
    assert len(piece.logprobs) == 40


def test_a_loop_that_is_closed_disturbs_nobody(tiny):
    llm = LLM(tiny, num_blocks=256)

    async def leave(engine):
        await anext(aiter(await submitted(engine, exactly(60))))

    async def stay(engine):
        return await read(await submitted(engine, exactly(20)))

    with started(llm) as engine:
        asyncio.run(leave(engine))
        assert asyncio.run(stay(engine)) == "ok"
        until(lambda: not engine.running)
    assert_idle(llm)
