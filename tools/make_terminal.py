"""Make docs/chat.svg: a picture of a real conversation in `pagedlab chat`.

PAGEDLAB_MODEL=FOLDER python tools/make_terminal.py

The model answers greedily on the CPU in fp32, /fork has a fixed seed, and no time is shown. So the same weights give
the same picture. The caption of the picture, its title, names the model. rich draws; by hand is its form without fonts
from the web.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from pagedlab import LLM, SamplingParams
from pagedlab_serve.cli.chat import PROMPT, WELCOME, converse

REPO = Path(__file__).parents[1]
WIDTH = 96  # characters in a line
LINES = (
    "What is a drum? One sentence.",
    "And a flute?",
    "/fork Write one short line of a poem about both.",
)
SEED = 1
# rich's own form without its fonts, which a browser would fetch from the web
FONTS = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace'
FORM = f"""\
<svg class="rich-terminal" viewBox="0 0 {{width}} {{height}}" role="img" \
aria-label="a conversation, with its blocks below each answer" \
xmlns="http://www.w3.org/2000/svg">
<style>
  .{{unique_id}}-matrix {{{{ font-family: {FONTS}; font-size: {{char_height}}px; line-height: {{line_height}}px; }}}}
  .{{unique_id}}-title {{{{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}}}
  {{styles}}
</style>
<defs>
<clipPath id="{{unique_id}}-clip-terminal">
  <rect x="0" y="0" width="{{terminal_width}}" height="{{terminal_height}}" />
</clipPath>
{{lines}}
</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})" clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""


def typed(console: Console) -> Iterator[str]:
    """Yield the lines, and print each as a terminal shows what is typed."""
    for line in LINES:
        console.print(f"{PROMPT}{line}", highlight=False, markup=False)
        yield line


def picture(llm: LLM) -> str:
    """The conversation as SVG."""
    # rich draws a text that grows once, at its end, if there is no terminal.
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=False, color_system="truecolor")
    console.print(WELCOME, highlight=False, markup=False)
    converse(llm, SamplingParams(max_tokens=64, seed=SEED), typed(console), console)
    title = f"pagedlab chat: {llm.model.name} on a CPU"
    return console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=FORM, unique_id="chat")


def main() -> None:
    path = REPO / "docs" / "chat.svg"
    llm = LLM(device="cpu", dtype="float32", num_blocks=64, attention_backend="torch")
    path.write_text(picture(llm), encoding="utf-8")


if __name__ == "__main__":
    main()
