"""Download a checkpoint from the Hugging Face hub. This is the only file that asks the network."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants
from huggingface_hub import file_download as hub

from pagedlab.arguments import hub_id, in_short, visible
from pagedlab.loading import DEFAULT_MODEL, FILES
from pagedlab_serve.command_line import program_name

NO_ANSWER = "the hub does not answer"
# The names of exceptions of httpx, huggingface_hub, filelock and Python, and their meaning here.
REASONS = {
    "RepositoryNotFoundError": "the hub has no such model",
    "TransportError": NO_ANSWER,
    "KeyboardInterrupt": "stopped",
    "Timeout": "another process is fetching it",
}


@dataclass
class Checkpoint:
    """A checkpoint on the hub, and its place in the local cache.

    Args:
        name: hub id.
        commit: the version of its files.
        home: the model's folder in the cache.
        sizes: bytes of each file that an engine needs, by name.
    """

    name: str
    commit: str
    home: Path
    sizes: dict[str, int]

    @property
    def folder(self) -> Path:
        """The folder of this version."""
        return self.home / "snapshots" / self.commit


def download(name: str = DEFAULT_MODEL) -> None:
    """Download a checkpoint from the Hugging Face hub into the local cache.

    The cost is printed first. If you stop the download, or the connection breaks, the next call
    continues where it ended, while huggingface_hub's own download begins the file again. The cache
    knows the model once its last file is complete.

    Args:
        name: hub id.

    Raises:
        ValueError: If it is no hub id, or the download failed. The message says why.
    """
    hub_id(name)
    checkpoint = None
    try:
        checkpoint = _look_up(name)
        checkpoint.folder.mkdir(parents=True, exist_ok=True)
        (checkpoint.home / "refs").mkdir(exist_ok=True)
        with hub.WeakFileLock(checkpoint.home / "download.lock", timeout=1):
            missing = _missing_files(checkpoint)
            for file_name in missing:
                _fetch(checkpoint, file_name)
            (checkpoint.home / "refs" / "main").write_text(checkpoint.commit)
    except (Exception, KeyboardInterrupt) as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        known = [REASONS[kind] for kind in kinds if kind in REASONS]
        why = known[0] if known else in_short(error)
        is_kept = checkpoint is not None and _has_part(checkpoint)
        kept = "; the part that was fetched is kept" if is_kept else ""
        meanwhile = ""
        if why == NO_ANSWER:
            meanwhile = f"; `{program_name()} chat` works meanwhile, with the tiny model"
        raise ValueError(f"{name} was not fetched ({why}): try again{kept}{meanwhile}") from None
    print(f"{name} is complete")


def _has_part(checkpoint: Checkpoint) -> bool:
    """Whether the cache has at least one byte of this version."""
    return any(file.stat().st_size for file in checkpoint.folder.glob("*"))


def _look_up(name: str) -> Checkpoint:
    """Ask the hub for the files of a checkpoint."""
    info: Any = HfApi().model_info(name, files_metadata=True, timeout=10)
    home = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
    sizes = {}
    for file in info.siblings:
        path = Path(file.rfilename)
        if "/" not in file.rfilename and any(path.match(pattern) for pattern in FILES):
            sizes[file.rfilename] = file.size
    return Checkpoint(name, info.sha, home, sizes)


def _missing_files(checkpoint: Checkpoint) -> list[str]:
    """Return the names of files that are not in the cache, and print their size.

    `OSError` if the checkpoint has no weights, or the disk has no room for it.
    """
    folder = checkpoint.folder
    missing = [name for name in checkpoint.sizes if not (folder / name).is_file()]
    cost = sum(checkpoint.sizes[name] for name in missing)
    cost -= sum(part.stat().st_size for part in folder.glob("*.incomplete"))
    print(
        f"{checkpoint.name}: {cost / 1e6:,.0f} MB into {visible(str(folder))}; stop it when you "
        "like, the next call goes on"
    )
    if not any(name.endswith(".safetensors") for name in checkpoint.sizes):
        raise OSError("the hub has no *.safetensors of it")
    room = shutil.disk_usage(folder).free
    if cost > room:
        raise OSError(f"the disk has room for {room / 1e6:,.0f} MB")
    return missing


def _fetch(checkpoint: Checkpoint, file_name: str) -> None:
    """Download one file, or the rest of it."""
    path = checkpoint.folder / file_name
    part = Path(f"{path}.incomplete")
    url = hub.hf_hub_url(checkpoint.name, file_name, revision=checkpoint.commit)
    with part.open("ab") as out:
        hub.http_get(
            url,
            out,
            resume_size=out.tell(),
            expected_size=checkpoint.sizes[file_name],
            headers=hub.build_hf_headers(),
        )
    part.replace(path)
