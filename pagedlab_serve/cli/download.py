"""pagedlab download: fetches a model from the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated

import typer

from pagedlab.shipped import DEFAULT_MODEL


def download(
    model: Annotated[str, typer.Argument(help="Hub id.")] = DEFAULT_MODEL,
) -> None:
    """Fetch a model from the Hugging Face hub. Run it again to continue what was stopped."""
    typer.echo(f"asking the Hugging Face hub for {model} ...")
    from pagedlab_serve import hub

    hub.download(model)
    typer.echo(f"{model} is complete")
