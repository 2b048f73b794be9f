"""Download a checkpoint from the Hugging Face hub. This is the only file that asks the network."""

import re

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from pagedlab.arguments import in_short, shown
from pagedlab.loading import DEFAULT_MODEL, FILES

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")  # an owner and a name; of a few, a name


def download(name: str = DEFAULT_MODEL) -> None:
    """Download a checkpoint from the Hugging Face hub into the local cache.

    Args:
        name: hub id.

    Raises:
        ValueError: If it is no hub id, or the download failed. The message says why.
    """
    if not HUB_ID.fullmatch(name):
        raise ValueError(f"a hub id is like {DEFAULT_MODEL}, got {shown(name)}")
    try:
        snapshot_download(name, allow_patterns=FILES, ignore_patterns="*/*")
    except LocalEntryNotFoundError:  # the hub's client says so, in three sentences
        raise ValueError(
            f"{name} was not fetched: huggingface.co does not answer "
            "(the tiny model needs no network)"
        ) from None
    except Exception as error:  # of the hub, of the network or of the disk
        raise ValueError(f"{name} was not fetched ({in_short(error)}): try again") from None
