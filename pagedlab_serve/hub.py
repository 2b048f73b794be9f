"""Download a checkpoint from the Hugging Face hub. This is the only file that asks the network."""

from huggingface_hub import snapshot_download

from pagedlab.arguments import hub_id, in_short
from pagedlab.loading import DEFAULT_MODEL, FILES


def download(name: str = DEFAULT_MODEL) -> None:
    """Download a checkpoint from the Hugging Face hub into the local cache.

    Args:
        name: hub id.

    Raises:
        ValueError: If it is no hub id, or the download failed. The message says why.
    """
    hub_id(name)
    try:
        snapshot_download(name, allow_patterns=FILES, ignore_patterns="*/*")
    except Exception as error:  # of the hub, of the network or of the disk
        raise ValueError(f"{name} was not fetched ({in_short(error)}): try again") from error
