"""What several test files share: a printed seed, the tiny model, a real Qwen where there is one."""

import gc
import os
import random
import secrets
import shutil
import signal
import sys
import zlib
from weakref import WeakKeyDictionary

if shutil.which("nvidia-smi") is None:  # Triton reads it when it is first imported, by whoever that may be
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Before torch is imported: tests run side by side, and OpenMP threads that compete for a core are far slower than one.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test asks the hub; those about the hub put a server of their own in its place.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import Phase, settings

from support import interpreter

sys.modules["rfc3987_syntax"] = None  # a grammar that takes seconds to read, for addresses that no notebook has
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background has it ignored
gc.disable()  # what is imported and collected stays: nobody looks for garbage in it, neither before the first test ...

if os.environ.get("TRITON_INTERPRET") == "1":
    interpreter.spare()
# A slow machine is no bug, and how fast pagedlab is belongs to benchmarks/.
# The same examples in every run, so a pull request fails for what it changes; new ones every night.
FRESH_SEEDS = os.environ.get("PAGEDLAB_SEED") == "fresh"
settings.register_profile("pagedlab", deadline=None, derandomize=not FRESH_SEEDS)
# For mutmut: found is enough, shrinking would take the most time.
settings.register_profile("mutants", deadline=None, database=None, phases=[Phase.explicit, Phase.generate])
settings.load_profile("pagedlab")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    """Notebooks run first, since they take the longest: processes that share the tests end together then.

    Tests in a browser run last: once Playwright has started, its event loop is in the way of others.
    """
    for item in items:
        if "qwen_folder" in item.fixturenames:
            item.add_marker("qwen")
    items.sort(key=lambda item: item.path.name != "test_notebooks.py")
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")


def pytest_collection_finish():
    gc.freeze()  # ... nor later
    gc.enable()


@pytest.fixture
def seed(request):
    """A number of the test's own, the same in every run. It is shown when the test fails.

    With PAGEDLAB_SEED=fresh it is a new one in every run; with PAGEDLAB_SEED=n it is n.
    """
    if FRESH_SEEDS:
        number = secrets.randbits(31)
    elif os.environ.get("PAGEDLAB_SEED"):
        number = int(os.environ["PAGEDLAB_SEED"])
    else:
        number = zlib.crc32(request.node.nodeid.encode()) >> 1
    print(f"PAGEDLAB_SEED={number}")
    return number


@pytest.fixture
def rng(seed):
    """Random numbers from the test's own seed."""
    return random.Random(seed)


@pytest.fixture(scope="session")
def tiny():
    """The model shipped with pagedlab, in fp32 on the CPU."""
    from pagedlab.model import TINY_MODEL, load_model

    return load_model(TINY_MODEL, device="cpu", dtype="float32", verbose=False)


@pytest.fixture(scope="session")
def exact():
    """The same model in fp64, where rounding decides nothing."""
    from pagedlab.model import TINY_MODEL, load_model

    return load_model(TINY_MODEL, device="cpu", dtype="float64", verbose=False)


@pytest.fixture(scope="session")
def qwen_folder():
    """The folder of a real Qwen, or the test is skipped."""
    folder = os.environ.get("PAGEDLAB_TEST_MODEL")
    if not folder:
        pytest.skip("PAGEDLAB_TEST_MODEL names no folder with a real Qwen")
    return folder


@pytest.fixture(scope="session")
def qwen(qwen_folder):
    """A real Qwen in fp32 on the CPU."""
    from pagedlab.model import load_model

    return load_model(qwen_folder, device="cpu", dtype="float32", verbose=False)


@pytest.fixture(scope="session")
def hugging_face():
    """`hugging_face(model, prompt_ids, n)`: the up to n new tokens of greedy `generate`, each prompt on its own."""
    # Not by id(): a number is given out again once its module is gone.
    answers = WeakKeyDictionary()

    def generate(model, prompt_ids, max_new_tokens):
        known = answers.setdefault(model.module, {})
        key = (tuple(prompt_ids), max_new_tokens)
        if key not in known:
            ids = torch.tensor([prompt_ids])
            with model.stock_attention() as module, torch.inference_mode():
                out = module.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    repetition_penalty=1.0,
                    pad_token_id=0,
                )
            known[key] = out[0, len(prompt_ids) :].tolist()
        return known[key]

    return generate
