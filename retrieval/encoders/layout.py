"""The files of an encoder: an ONNX file, a folder of Optimum or Transformers.js, or a model of the Hugging Face hub."""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from retrieval.errors import EncoderRefused, InvalidParameter, counted, importing, listed

from .processor import FILES

HUB = "hf://"
INNER = "onnx"  # the folder of a model's ONNX files
PLAIN = ("vision_model.onnx", "onnx/vision_model.onnx", "model.onnx", "onnx/model.onnx")  # the first of them is taken
DATA = "[._]data*"  # what follows a file's name in those of its external data
SILENT, REMEMBERED_S = "retrieval-hub-is-silent", 3600.0  # the file, and how long it counts
TIMEOUT_S = 3.0  # to find out whether the hub answers; huggingface_hub itself retries for half a minute, file by file


def find_encoder(place: str, folder: Path, *, preprocessor: Path | None) -> tuple[Path, Mapping[str, Any] | None]:
    """Return the ONNX file of an encoder, and the values of its image processor, None if it has none.

    Parameters
    ----------
    place:
        A file, a folder, hf://ORG/NAME, or hf://ORG/NAME/FILE.
    folder:
        A new folder, which gets the files that are symbolic links elsewhere, such as those of the hub's cache.
    preprocessor:
        File of the image processor's values; with None, it is looked for beside the ONNX file.

    Raises
    ------
    InvalidParameter, EncoderRefused
        If files are missing or unreadable, or the hub does not answer.
    """
    root, name = _downloaded(place.removeprefix(HUB).strip("/")) if place.startswith(HUB) else (Path(place), "")
    file = root
    if root.is_dir():
        paths = [*root.glob("*.onnx"), *root.glob(f"{INNER}/*.onnx")]
        file /= name or _chosen(place, [path.relative_to(root).as_posix() for path in paths])
    if not file.is_file():
        raise InvalidParameter("--onnx", f"be an ONNX file, a folder with one, or {HUB}ORG/NAME", place)
    above = [file.parent, *([file.parent.parent] if file.parent.name == INNER else [])]
    beside = (parent / name for parent in above for name in FILES)
    processor = preprocessor or next((path for path in beside if path.is_file()), None)
    return _unlinked(file, folder), None if processor is None else _values(processor)


def _chosen(place: str, names: Sequence[str]) -> str:
    """Return the plain model among ONNX files; a variant of it is named as a file."""
    plain = [name for name in PLAIN if name in names] or list(names)
    if not plain or (len(plain) > 1 and plain[0] not in PLAIN):
        told = f"{place} holds {listed(sorted(names)) if names else 'no ONNX file'}"
        raise EncoderRefused(
            told, remedy=f"Name one file, such as {place.rstrip('/')}/{(*sorted(names), 'model.onnx')[0]}"
        )
    return plain[0]


def _unlinked(file: Path, folder: Path) -> Path:
    """Return an ONNX file, copied together with its external data if it is a link: onnx reads no linked data."""
    if not file.is_symlink():
        return file
    for path in file.parent.iterdir():
        if path.name == file.name or fnmatch(path.name, file.name + DATA):
            shutil.copyfile(path, folder / path.name)
    return folder / file.name


def _values(path: Path) -> Mapping[str, Any]:
    """Return the values of an image processor, alone or within a processor of texts and images."""
    try:
        values = json.loads(path.read_bytes())
        values = values.get("image_processor") or values
        return {"do_normalize": "image_mean" in values, "do_center_crop": "crop_size" in values, **values}
    except (AttributeError, TypeError, ValueError) as error:
        rule = f"be the values of an image processor ({error})"
        raise InvalidParameter("--preprocessor", rule, str(path), remedy="Correct the file") from error


def _downloaded(name: str) -> tuple[Path, str]:
    """Return the folder of a model of the hub with its JSON files and one ONNX file, and the file's name in it."""
    with importing("huggingface_hub", "export"):
        from huggingface_hub import list_repo_files, snapshot_download
        from huggingface_hub.errors import EntryNotFoundError
    repository, file = "/".join(name.split("/")[:2]), "/".join(name.split("/")[2:])
    online = hub_is_reachable()
    try:
        if not online:
            return Path(snapshot_download(repository, local_files_only=True, allow_patterns="*.json")), file
        names = [path for path in list_repo_files(repository) if path.endswith(".onnx")]
        file = file or _chosen(f"{HUB}{name}", names)
        patterns = ["*.json", file, file + DATA]
        return Path(snapshot_download(repository, allow_patterns=patterns)), file
    except (EntryNotFoundError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        rule = f"name a readable model ({reason})" if online else "be in the cache while the hub does not answer"
        remedy = "Check the name" if online else "Connect to the Hugging Face hub once, or name a local folder"
        raise InvalidParameter("--onnx", rule, f"{HUB}{name}", remedy=remedy) from error


@cache
def hub_is_reachable() -> bool:
    """Return whether the hub answers; false in offline mode (HF_HUB_OFFLINE=1).

    It is asked once per process, and not at all if it has not answered within the last hour, which a file in the
    hub's cache remembers.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    silent = Path(constants.HF_HUB_CACHE) / SILENT
    with suppress(OSError):
        if 0 <= (ago := time.time() - silent.stat().st_mtime) < REMEMBERED_S:
            told = f"The Hugging Face hub did not answer {counted(round(ago / 60), 'minute')} ago"
            print(f"{told}, and is not asked for an hour. To ask it now, remove {silent}.", file=sys.stderr)
            return False
    print("Asking whether the Hugging Face hub answers (up to 20 s) ...", file=sys.stderr, flush=True)
    answers = _answers(constants.ENDPOINT)
    with suppress(OSError):  # a cache that nobody may write
        if answers:
            silent.unlink(missing_ok=True)
        else:
            silent.parent.mkdir(parents=True, exist_ok=True)
            silent.touch()
    return answers


def _answers(endpoint: str) -> bool:
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - the hub's own address
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
            return True
    except urllib.error.HTTPError:  # it answers
        return True
    except OSError:
        return False
