"""Files that are cut short or have bits flipped: refused in one line, or loaded with the same logits.

`PAGEDLAB_OPERATIONS=1000` breaks a thousand; without it as many as `make test` has time for. What cannot be seen is
left out: a weight that is another number makes another model, unless the file came with a checksum. So of the weights
only the header is broken, every bit of it. In the same way `rope_parameters` and `rms_norm_eps` in config.json are
numbers that another model may have, or leave out, and they stay. All else is fair: configs, index, tokenizer, template,
and the length of every file.
"""

import random
import re
import shutil
from collections import Counter

import pytest
import torch

from pagedlab import LLM
from pagedlab.model import load_model
from support.checkpoints import random_checkpoint
from support.engines import exactly, output_of, plain_logits
from support.operations import LONG_RUN, OPERATIONS

KINDS = {
    "qwen2": {},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "llama": {"attention_bias": True},
    "qwen2 in several files": {},
}
PROMPT = [7, 8, 9, 200, 30, 31, 3]
FREE = re.compile(rb'"rope_parameters": \{.*?\}|"rms_norm_eps": [^,]*', re.DOTALL)


@pytest.fixture(scope="module", params=KINDS)
def sound(request, tmp_path_factory):
    """A small checkpoint with random weights."""
    folder = tmp_path_factory.mktemp("broken") / "sound"
    kind, _, several = request.param.partition(" ")
    folder.mkdir()
    random_checkpoint(folder, kind, **KINDS[request.param])
    if several:
        with load_model(folder, device="cpu", verbose=False).stock_attention() as module:
            (folder / "model.safetensors").unlink()
            module.save_pretrained(folder, max_shard_size="1MB")
        assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def broken(path, rng):
    """Break this file, and say how."""
    data = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little") if path.suffix == ".safetensors" else len(data)
    how = rng.choice(("cut", "longer", "bits", "bits", "bits"))
    if how == "cut":
        del data[rng.choice((0, rng.randrange(len(data)), rng.randrange(header), len(data) - 1)) :]
    elif how == "longer":
        data += rng.randbytes(rng.randint(1, 9))
    else:
        free = {i for found in FREE.finditer(data) for i in range(*found.span()) if path.name == "config.json"}
        for _ in range(rng.choice((1, 1, 2, 9))):
            at = rng.choice([i for i in range(header) if i not in free])
            data[at] ^= 1 << rng.randrange(8)
            how += f" {at}"
    path.write_bytes(data)
    return f"{path.name}: {how}, {len(data)} bytes"


def says(model):
    """The logits of the stock module [T, V], and what the engine goes on with."""
    logits = plain_logits(model, PROMPT)
    llm = LLM(model, block_size=8, num_blocks=8)
    return logits, output_of(llm, PROMPT, exactly(4)).token_ids


def in_one_line(error, how, named=""):
    said = str(error)
    assert len(said.splitlines()) == 1, how
    assert named in said, f"{how}: {named} is not named in {said!r}"


@LONG_RUN
def test_broken_files(sound, tmp_path, seed, capfd):
    logits, tokens = says(load_model(sound, device="cpu", verbose=False))
    rng, folder, seen = random.Random(seed), tmp_path / "broken", Counter()
    capfd.readouterr()
    for _ in range((OPERATIONS or 40) // len(KINDS)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        how = broken(rng.choice(sorted(folder.iterdir())), rng)
        print(how)
        try:
            model = load_model(folder, device="cpu", verbose=False)
        except ValueError as error:
            seen["refused"] += 1
            in_one_line(error, how, folder.name)
            continue
        seen["loaded"] += 1
        again, more = says(model)
        assert torch.equal(again, logits), how
        assert more == tokens, how
        for prompt in ("a text of words", [{"role": "user", "content": "hello"}]):
            try:
                model.decode(model.checked_ids(prompt))
            except ValueError as error:
                seen["a prompt refused"] += 1
                in_one_line(error, how)
    out, err = capfd.readouterr()
    assert err == "", "a report of another library"
    assert len(out.splitlines()) == seen["refused"] + seen["loaded"]
    print(dict(seen))
