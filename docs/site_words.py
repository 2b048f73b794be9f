"""What the site's pages say where a notebook's words are true in JupyterLab alone: docs/conf.py replaces them.

By hand, because on a page some pictures play, some can be pointed at, and some do not move: each sentence needs another one.
"""

from __future__ import annotations

import re

# What must not be left on a page, unless the words before it say that it is about JupyterLab.
ONLY_IN_JUPYTERLAB = re.compile(r".{0,90}(?:Shift\+Enter|[Rr]un the folded cell)")
# By notebook: words of its text cells, and what a page has in their place.
WORDS = {
    "00_start_here": {
        "**Press Shift+Enter four times, then wait**: the model loads, and the film starts.": (
            "The film plays by itself, and **Again** repeats it."
        ),
        "Replace `...` with a list of block numbers and press Shift+Enter.": (
            "In JupyterLab you replace `...` with a list of block numbers and press Shift+Enter."
        ),
        "into the first folded cell.": "into the notebook's first cell in Colab.",
    },
    "01_fragmentation": {
        "Run the folded cell (Shift+Enter), drag **users** to 1": "Drag **users** to 1",
    },
    "02_block_pool": {
        "Run the folded cell and point at a word": "Point at (or tap) a word",
        "Then type another text.": "In JupyterLab you also type another text.",
        "Select `s0` and free it. Then select `s1`,": "In JupyterLab you select `s0` and free it. Then you select `s1`,",
    },
    "03_copy_on_write": {
        "Run the folded cell and look": "Look",
        "Move the **Step** slider.": "In JupyterLab you move the **Step** slider.",
    },
    "04_sampling_and_beams": {
        "Run the folded cell and move the slider: which beams are dropped?": "Move the slider, or press ▶: which beams are dropped?"
    },
    "05_prefix_caching": {
        "Run the folded cell and type in either box.": "Point at (or tap) a word. In JupyterLab you can type in either box."
    },
    "06_online_softmax": {
        "Run the folded cell and move `late_score` to 89:": ("Move `late_score` to 89:")
    },
    "07_the_paged_kernel": {
        "Run the folded cell: three sequences": "The picture shows three sequences"
    },
    "08_qwen": {"Run the folded cell and press ▶": "Press ▶"},
    "09_continuous_batching": {"Run the folded cell and press ▶": "Press ▶"},
    "10_serving_qwen": {"Run the folded cell. The GPU computes": "The GPU computes"},
    "11_two_devices": {"Run the folded cell and point at a block": "Point at (or tap) a block"},
    "12_speculative_decoding": {
        "Run the folded cell and step through a real answer": "Move the slider through a real answer",
    },
    "13_serve_it": {
        "Run the folded cell and drag the slider: which blocks": "It plays below. Drag the slider: which blocks",
    },
    "15_your_engine": {
        "Run the folded cell and move the slider along a step.": "Move the slider along a step.",
    },
    "14_measuring_a_server": {
        "Run the folded cell and move `rate`: at": "Move `rate`: at",
        'At 180, set `clock` to "admission" and compare p99. It is the same run, and the problem seems to be gone.': (
            'At 180, set `clock` to "admission" and compare p99. It is the same run, and the problem seems to be gone: '
            "p99 falls from 367 to 4 ms."
        ),
    },
}


def pattern_of(words: str) -> re.Pattern[str]:
    """What finds words, wherever their lines end."""
    return re.compile(r"\s+".join(map(re.escape, words.split())))


def for_a_page(stem: str, text: str) -> str:
    """A text cell of this notebook as its page has it."""
    for words, others in WORDS.get(stem, {}).items():
        text = pattern_of(words).sub(lambda _, others=others: others, text)  # type: ignore[misc]
    return text
