"""Find the files of pretrained models in a local folder, in the cache of the Hugging Face hub, or on the hub."""

from __future__ import annotations

import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

from retrieval.errors import InvalidParameter

TIMEOUT_S = 3.0  # to find out whether the hub answers; huggingface_hub itself retries for half a minute, file by file
WAY_OUT = (
    "Connect to the Hugging Face hub once, which caches the model, or name a local folder with its files, or use "
    "efficientnet-lite0, which needs no download"
)


@cache
def hub_is_reachable() -> bool:
    """Return whether the hub answers, which is checked once per process; false in offline mode (HF_HUB_OFFLINE=1)."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")  # noqa: S310 - the hub's own address
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
            return True
    except urllib.error.HTTPError:  # it answers
        return True
    except OSError:
        return False


def is_cached(name: str) -> bool:
    """Return whether the configuration and the weights of a model of the hub are in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "model.safetensors")
    return all(isinstance(try_to_load_from_cache(name, file), str) for file in files)


def model_file(name: str, file: str) -> Path | None:
    """Return a file of a local folder or of a model of the hub, or None if the model has no such file.

    Raises InvalidParameter if the model does not exist, or if the file is not in the cache and the hub does not answer.
    """
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        cached = try_to_load_from_cache(name, file)
        if cached is not None:  # a path, or a mark that the model has no such file
            return Path(cached) if isinstance(cached, str) else None
        return Path(hf_hub_download(name, file, local_files_only=not hub_is_reachable()))
    except LocalEntryNotFoundError as error:  # is an EntryNotFoundError too
        raise unavailable(name) from error
    except EntryNotFoundError:
        return None
    except HFValidationError as error:
        raise InvalidParameter("backbone", "be a local folder or a model of the hub", name, remedy=WAY_OUT) from error
    except HfHubHTTPError as error:
        reason = str(error).splitlines()[0]
        raise InvalidParameter("backbone", f"be a model that can be downloaded ({reason})", name) from error


def unavailable(name: str) -> InvalidParameter:
    """Return the error for a model that is not in the cache while the hub does not answer."""
    return InvalidParameter(
        "backbone",
        "be a local folder or a model in the cache while the Hugging Face hub does not answer",
        name,
        remedy=WAY_OUT,
    )
