"""pagedlab info: versions, devices, and the model that would answer."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from pagedlab.arguments import counted
from pagedlab.shipped import notebooks
from pagedlab_serve.command_line import print_now

PACKAGES = ("torch", "transformers", "triton", "numpy")
EXTRAS = {  # a package of each extra, which shows whether it is installed
    "notebooks": "jupyterlab",
    "server": "fastapi",
    "gguf": "gguf",
}


def run() -> int:
    """Print the lines and return the exit code. The lines that need torch are the last."""
    print_now(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        print_now(f"{package} {_version(package)}")
    for extra, module in EXTRAS.items():
        state = "installed" if find_spec(module) else f'pip install "pagedlab[{extra}]"'
        print_now(f"extra {extra}: {state}")
    print_now(f"notebooks: {notebooks()}")
    _print_devices()
    return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _print_devices() -> None:
    import torch  # takes seconds to import

    from pagedlab.loading import choose_model, locate

    cpu = f"cpu with {counted(torch.get_num_threads(), 'thread')}"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print_now(f"devices: {', '.join([cpu, *names])}")
    model, reason = choose_model()
    locate(model)  # raises ValueError if there is no such model
    print_now(f"model: {model} ({reason})")
