"""One recorder of an engine's run, one format, one replay.

    engine  -- after every step -->  Recorder  -->  recording  -->  Replay: the state after step i

A recording is JSON, and docs/trace.md describes it. Everything that shows a run is a function of a
recording: the stage, the timeline, the pictures of the notebooks, the server's live page.

    with Recorder(llm) as recorder:
        llm.generate(prompts)
    state = Replay(recorder.recording).seek(3)
"""

from pagedlab.recipes.trace.format import load_recording
from pagedlab.recipes.trace.recorder import Recorder, record
from pagedlab.recipes.trace.replay import Replay, SequenceState, moments
from pagedlab.recipes.trace.words import pieces

__all__ = [
    "Recorder",
    "Replay",
    "SequenceState",
    "load_recording",
    "moments",
    "pieces",
    "record",
]
