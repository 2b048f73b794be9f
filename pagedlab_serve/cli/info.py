"""pagedlab info: versions, devices, and the model that would answer."""

from __future__ import annotations

import platform
from importlib.metadata import distributions
from importlib.util import find_spec

import typer

from pagedlab import __version__
from pagedlab.shipped import notebooks

PACKAGES = ("torch", "transformers", "triton", "numpy")
EXTRAS = {"notebooks": "jupyterlab", "server": "fastapi", "gguf": "gguf"}  # and a package of each


def info() -> None:
    """Print versions, devices, and the model that would answer."""
    typer.echo(f"pagedlab {__version__}")
    typer.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    versions = {each.name: each.version for each in distributions()}
    for package in PACKAGES:
        typer.echo(f"{package} {versions.get(package, 'is not installed')}")
    for extra, module in EXTRAS.items():
        state = "installed" if find_spec(module) else f'pip install "pagedlab[{extra}]"'
        typer.echo(f"extra {extra}: {state}")
    typer.echo(f"notebooks: {notebooks()}")
    import torch

    from pagedlab.loading import choose_model, locate

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    typer.echo(f"devices: {', '.join([f'cpu, threads: {torch.get_num_threads()}', *names])}")
    model, reason = choose_model()
    locate(model)  # raises ValueError if there is no such model
    typer.echo(f"model: {model} ({reason})")
