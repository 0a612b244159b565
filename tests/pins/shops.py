"""A shop: a gallery with its bundles and the queries to ask; the commands that fill it; the choice of its queries."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from numpy.typing import NDArray

from retrieval.cli.main import group
from retrieval.errors import RetrievalError

from ..world import shuffled

Image = Path | NDArray[np.uint8]
UNTOLD = ("gallery_version", "assumptions")  # evidence that is bookkeeping or prose


@dataclass(frozen=True)
class Picture:
    """A photo of an item."""

    name: str  # the photo id
    item: str
    image: Image
    vector: NDArray[np.float32] | None = None  # (d,) where the gallery is filled by vectors
    group: str = ""


@dataclass(frozen=True)
class Query:
    """A search."""

    name: str
    images: Sequence[Image]
    options: Mapping[str, Any] = field(default_factory=dict)  # of `Retriever.search` or `search_boxes`


@dataclass
class Shop:
    """A gallery, the bundle that sets its threshold, two more of the same model, and the queries to ask.

    The bundle `given` has a threshold of its own, which serves where the gallery has none for it. `bare` has none.
    """

    bundle: Path
    given: Path
    bare: Path
    gallery: Path
    queries: list[Query] = field(default_factory=list)
    points: dict[str, Any] = field(default_factory=dict)  # what commands told, by a name

    def index(self, table: Path, *options: str) -> dict[str, Any]:
        """Run `retrieval index` and return its report: counts, refused photos and the point."""
        report = self.gallery.with_name("report.json")
        report.unlink(missing_ok=True)
        words = ["index", self.bundle, table, "-o", self.gallery, "--threads", 1, "--report", report, *options]
        _run(*words)
        told = json.loads(report.read_text())
        counts = {name: told[name] for name in ("added", "replaced", "updated", "removed", "skipped", "gone")}
        return {**counts, "refused": _refused(told), "point": point_of(told["point"])}

    def calibrate(self, *options: str | Path) -> dict[str, Any]:
        """Run `retrieval calibrate` and return what changes, or the kind of the error."""
        try:
            told = json.loads(_run("calibrate", self.bundle, self.gallery, "--json", *options))
        except RetrievalError as error:
            return {"error": type(error).__name__}
        changed = [[kind["searched"], len(kind["changed"])] for kind in told["answers"]]
        points = {name: point_of(told[name]) for name in ("before", "after")}
        return {**points, "rates": told["rates"], "answers": changed, "refused": _refused(told)}


def _refused(told: dict[str, Any]) -> list[str]:
    return [each["photo_id"] for each in told["refused"]]


def _run(*words: object) -> str:
    """Run a command and return its output; raise its error if it fails."""
    done = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def point_of(point: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an operating point without what is bookkeeping or prose."""
    if point is None:
        return None
    return {**point, "evidence": {name: value for name, value in point["evidence"].items() if name not in UNTOLD}}


def write_table(path: Path, photos: Iterable[Picture], **columns: Sequence[object]) -> Path:
    """Write photos as a catalogue, with further columns."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "photo_id", "item_id", "group", *columns])
        for photo, *more in zip(photos, *columns.values(), strict=bool(columns)):
            writer.writerow([photo.image, photo.name, photo.item, photo.group, *more])
    return path


def read_pictures(data: Path, name: str) -> list[Picture]:
    """Return the photos of one of the sets of real photos, with short ids: the items are numbers."""
    with (data / name / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = [row.get("item_id") or row["label"] for row in rows]
    numbers = {label: f"{number:03d}" for number, label in enumerate(sorted(set(labels)))}
    return [
        Picture(f"{numbers[label]}-{place}", numbers[label], data / name / row["path"], group=row.get("group", ""))
        for place, (row, label) in enumerate(zip(rows, labels, strict=True))
    ]


@dataclass(frozen=True)
class Split:
    """Photos of a gallery, others of the same items, and others of items that are not there."""

    stay: list[Picture]
    held: list[list[Picture]]  # four photos of each of some items
    strangers: list[list[Picture]]  # all photos of each of the other items

    @classmethod
    def of(cls, photos: Sequence[Picture], *, held: int = 8, strangers: int = 5, each: int = 4, seed: int = 0) -> Split:
        """Split photos: some items are strangers, and of others with enough photos some are held out."""
        items: dict[str, list[Picture]] = {}
        for photo in photos:
            items.setdefault(photo.item, []).append(photo)
        chosen = shuffled(sorted(items), seed)
        apart = [items.pop(item) for item in chosen[:strangers]]
        many = [items[item] for item in chosen[strangers:] if len(items[item]) >= 2 * each][:held]
        taken = [shuffled(some, seed)[:each] for some in many]
        names = {photo.name for some in (*apart, *taken) for photo in some}
        return cls(shuffled([photo for photo in photos if photo.name not in names], seed), taken, apart)

    def queries(self, *more: Query) -> list[Query]:
        """Return queries for known and unknown items, for copies of photos, with several photos, and others."""
        known = [photo for turn in zip(*self.held, strict=True) for photo in turn][:13]
        unknown = [photo for some in self.strangers for photo in some[:2]][:8]
        copies = self.stay[:3]
        several = [*zip((2, 2, 3, 4), self.held[-4:], strict=True), (2, self.strangers[0])]
        return [
            *(Query(f"known {photo.name}", [photo.image]) for photo in known),
            *(Query(f"unknown {photo.name}", [photo.image]) for photo in unknown),
            *(Query(f"copy {photo.name}", [photo.image]) for photo in copies),
            *(Query(f"itself {photo.name}", [photo.image], {"left_out": [photo.name]}) for photo in copies[:1]),
            *(
                Query(f"{count} photos of {photos[0].item}", [photo.image for photo in photos[:count]])
                for count, photos in several
            ),
            *more,
        ]
