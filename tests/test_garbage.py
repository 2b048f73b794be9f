"""Full garbage collections wait until no requests run."""

import gc
import threading

import pytest

from pagedlab_serve.garbage import full_collections_postponed


@pytest.fixture
def eager_collections():
    """Collect garbage as often as Python can, and list the generations that were collected."""
    usual = gc.get_threshold()
    generations = []

    def note(phase, info):
        if phase == "stop":
            generations.append(info["generation"])

    gc.freeze()  # Python has no full collection while the new objects are less than a quarter
    gc.collect()
    gc.callbacks.append(note)
    gc.set_threshold(10, 1, 1)
    yield generations
    gc.callbacks.remove(note)
    gc.set_threshold(*usual)
    gc.unfreeze()


def test_the_last_of_several_threads_restores_the_settings(eager_collections):
    first_is_in, second_is_out = threading.Event(), threading.Event()
    settings = []

    def first():
        with full_collections_postponed():
            first_is_in.set()
            second_is_out.wait(60)
            settings.append(gc.get_threshold())

    thread = threading.Thread(target=first)
    thread.start()
    first_is_in.wait(60)
    with full_collections_postponed():
        pass
    second_is_out.set()
    thread.join()
    assert settings[0][2] > 10**6
    assert gc.get_threshold() == (10, 1, 1)
