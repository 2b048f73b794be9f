"""One pair of ranks for all tests of the folder. Its end is a test too."""

from importlib.util import find_spec

import pytest

from pagedlab.model import TINY_MODEL
from pagedlab.recipes.ranks import Ranked, RankLost, open_model
from pagedlab_fast import LLM
from support.ranks import listening, other_rank
from support.warm import can_copy


@pytest.fixture(scope="package", autouse=True)
def warm_ranks():
    """Ranks that have imported torch already. test_a_child_ends_with_rank_0 starts one from nothing."""
    if not can_copy():
        yield
        return
    from support.warm_ranks import WarmRank, start_the_original

    start_the_original()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pagedlab.recipes.ranks.workers.Popen", WarmRank)
        yield


@pytest.fixture(scope="package")
def two(warm_ranks):
    model = open_model(TINY_MODEL, "cpu", "float32", False, 2, "torch", LLM.follow if find_spec("triton") else "")
    yield model
    check_close(model)


def check_close(model):
    """To close an engine ends its ranks. Each ends well, and leaves the store to rank 0, which removes it last."""
    workers, rank, ports = model.ranks.workers, other_rank(model), listening()
    was_there, remove_folder = [], workers.remove_folder
    workers.remove_folder = lambda: (was_there.append(workers.folder.exists()), remove_folder())
    with Ranked(model, ranks=1, attention_backend="torch") as llm:
        assert rank.is_running()
        assert llm.pool.num_blocks == min(
            256 * model.max_length // 16, llm.cache.free_bytes() // llm.cache.bytes_per_block
        )
    assert not rank.is_running()
    assert workers.processes[0].returncode == 0
    assert was_there[0]
    assert not workers.folder.exists()
    assert len(listening()) < len(ports), "the port of the pair is free again"
    llm.close()
    with pytest.raises(RankLost, match="closed"):
        llm.generate([[1, 2, 3]])
