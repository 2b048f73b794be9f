"""Download a checkpoint from the Hugging Face hub. This is the only file that asks the network."""

import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants
from huggingface_hub import file_download as hub

from pagedlab.loading import DEFAULT_MODEL, FILES
from pagedlab.validation import in_short


def download(name: str = DEFAULT_MODEL) -> None:
    """Download a checkpoint from the Hugging Face hub into the local cache, saying first what it
    costs.

    What has come stays when you stop it or the hub goes away, and the next call goes on from there
    (huggingface_hub's own would begin a file anew). The cache knows the model once its last file is
    whole. `ValueError` says what failed.
    """
    try:
        info: Any = HfApi().model_info(name, files_metadata=True, timeout=10)
        home = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
        for folder in (home / "refs", home / "snapshots" / info.sha):
            folder.mkdir(parents=True, exist_ok=True)
        with hub.WeakFileLock(home / "download.lock", timeout=1):
            files = [
                f
                for f in info.siblings
                if "/" not in f.rfilename and any(map(Path(f.rfilename).match, FILES))
            ]
            todo = {
                folder / f.rfilename: f.size for f in files if not (folder / f.rfilename).is_file()
            }
            cost = sum(todo.values()) - sum(
                part.stat().st_size for part in folder.glob("*.incomplete")
            )
            print(
                f"{name}: {cost / 1e6:,.0f} MB into {folder}; stop it when you like, the next call "
                "goes on"
            )
            if not any(file.rfilename.endswith(".safetensors") for file in files):
                raise OSError("the hub has no *.safetensors of it")
            if cost > (room := shutil.disk_usage(folder).free):
                raise OSError(f"the disk has room for {room / 1e6:,.0f} MB")
            for path, size in todo.items():
                part, url = (
                    Path(f"{path}.incomplete"),
                    hub.hf_hub_url(name, path.name, revision=info.sha),
                )
                with part.open("ab") as out:
                    hub.http_get(
                        url,
                        out,
                        resume_size=out.tell(),
                        expected_size=size,
                        headers=hub.build_hf_headers(),
                    )
                part.replace(path)
            (home / "refs" / "main").write_text(info.sha)
    except (
        Exception,
        KeyboardInterrupt,
    ) as error:  # httpx, huggingface_hub and filelock have kinds of their own
        words = {
            "RepositoryNotFoundError": "the hub has no such model",
            "TransportError": "the hub does not answer",
        }
        words |= {"KeyboardInterrupt": "stopped", "Timeout": "another process is fetching it"}
        why = next(
            (words[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in words),
            in_short(error),
        )
        raise ValueError(f"{name} was not fetched ({why}): try again, what came is kept") from None
    print(f"{name} is complete")
