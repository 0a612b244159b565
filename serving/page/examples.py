"""Examples on the page: photos of the operator, or photos of the gallery whose answers are right."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Thread, main_thread

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index.gallery import Gallery
from index.snapshot import Snapshot
from retrieval.errors import ImageRefused, RetrievalError
from retrieval.images import open_image, read_file
from retrieval.retriever import Retriever
from retrieval.search.result import MATCH, NO_MATCH, PERHAPS, Match, SearchResult

log = logging.getLogger("retrieval.serving")
CHOSEN = {MATCH: 3, PERHAPS: 1, NO_MATCH: 2}  # photos of the gallery, by the kind of their answer
TRIED = 48  # photos of the gallery
LEFT_OUT, CROP = "Searched as if we did not have it", "A part of its photo"
MARGIN = 0.15  # cut off each side of the only photo of an item


@dataclass(frozen=True)
class Example:
    """A photo to try, and the ids of gallery photos that its search leaves out."""

    image: bytes
    label: str
    note: str = ""
    left_out: tuple[str, ...] = ()
    photo_id: str = ""  # of the gallery

    @property
    def name(self) -> str:
        """The name in addresses, the same in all processes of a server."""
        return sha256("\0".join((self.photo_id, *self.left_out)).encode() + self.image).hexdigest()[:16]


class Examples:
    """The examples of a server: some files, or else photos of its gallery, chosen on a thread of their own."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._examples = [example for file in files if (example := _read(file)) is not None]

    def start(self, retriever: Retriever) -> None:
        """Choose photos of the gallery, unless there are files."""
        if not self._examples:
            Thread(target=self._choose, args=(retriever,), name="examples").start()  # no daemon: it runs the model

    def shown(self, retriever: Retriever) -> list[Example]:
        """Return the examples; a photo that has been removed from the gallery is none."""
        return [each for each in self._examples if not each.photo_id or retriever.gallery.photo(each.photo_id)]

    def _choose(self, retriever: Retriever) -> None:
        try:
            self._examples = gallery_examples(retriever)
        except (RetrievalError, RuntimeError) as error:  # such as a gallery that was removed, or a process that ends
            log.warning("the page has no examples: %s", error)


def gallery_examples(retriever: Retriever) -> list[Example]:
    """Return photos of different items of a gallery whose answers are right, up to CHOSEN of each kind.

    A known photo is searched without itself, an unknown one without all photos of its item. Of an item with one photo,
    only a crop can be searched for. The first of each kind among TRIED photos, evenly spaced, are taken.
    """
    gallery = retriever.gallery
    if not isinstance(gallery, Gallery) or not retriever.point.decides:
        return []  # nothing can be left out, or nothing is right
    now, wanted = gallery.snapshot(), Counter(CHOSEN)
    found: dict[str, tuple[str, Example]] = {}  # kind and example, by item
    for place, position in enumerate(_evenly_spaced(now, TRIED).tolist()):
        if not main_thread().is_alive():  # the server has stopped
            break
        photo_id, item_id, metadata = now.photo(position)
        jpeg, own = gallery.thumbnail(photo_id), [name for name, _, _ in gallery.photos(item_id)]
        if jpeg is None or item_id in found or wanted.total() == 0:
            continue
        label = title_of(Match(item_id, photo_id, 0.0, dict(metadata)))
        if len(own) == 1:
            example = Example(_crop(jpeg), label, CROP, (), photo_id)
        elif place % 3 == 2:
            example = Example(jpeg, label, LEFT_OUT, tuple(own), photo_id)
        else:
            example = Example(jpeg, label, "", (photo_id,), photo_id)
        kind = _right(retriever.search(example.image, left_out=example.left_out), item_id, example)
        if wanted[kind] > 0:
            wanted[kind] -= 1
            found[item_id] = kind, example
    order = list(CHOSEN)
    return [example for _, example in sorted(found.values(), key=lambda pair: order.index(pair[0]))]


def title_of(match: Match) -> str:
    """Return an item's display name: its metadata `name`, or its id."""
    name = match.metadata.get("name")
    return name if isinstance(name, str) and name.strip() else match.item_id


def _right(answer: SearchResult, item_id: str, example: Example) -> str:
    """Return the kind of an answer, "" if it is not right."""
    named = answer.nearest is not None and answer.nearest.item_id == item_id
    if example.note == LEFT_OUT:
        return answer.decision if answer.decision == NO_MATCH else ""
    return answer.decision if named and answer.decision in (MATCH, PERHAPS) and len(answer.matches) <= 1 else ""


def _evenly_spaced(snapshot: Snapshot, count: int) -> NDArray[np.int64]:
    """Return the positions of up to `count` live photos, evenly spaced in insertion order."""
    positions = np.flatnonzero(snapshot.live)
    count = min(count, len(positions))
    return np.asarray(positions[(2 * np.arange(count) + 1) * len(positions) // max(1, 2 * count)])


def _crop(jpeg: bytes) -> bytes:
    """Return the middle of a photo as a JPEG."""
    image, made = Image.open(io.BytesIO(jpeg)), io.BytesIO()
    width, height = image.size
    left, upper = round(MARGIN * width), round(MARGIN * height)
    image.crop((left, upper, width - left, height - upper)).save(made, "JPEG", quality=95)
    return made.getvalue()


def _read(file: Path) -> Example | None:
    """Return an example under the name of its file in words, without a leading number; None if it cannot be read."""
    words = file.stem.replace("_", " ").replace("-", " ").split()
    label = " ".join(words[1:] if len(words) > 1 and words[0].isdigit() else words)
    try:
        image = read_file(file)
        open_image(image)
    except ImageRefused as error:
        log.warning("an example photo is left out: %s", error)
        return None
    return Example(image, label[:1].upper() + label[1:])
