"""What the commands of the tutorial print, on photos of groceries: the lines that the documentation shows.

    python -m research.benchmarks.first_hour

36 items with twelve photos are the catalogue. Labelled photos are one more of each, and one each of 14 items that are
not in it. The commands run one after the other in a folder of their own, as somebody types them.
"""

from __future__ import annotations

import csv
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from retrieval.catalogue.read import Photo, read_catalogue

from .promise_vectors import ICONIC
from .sides import CLASSES
from .tables import Recorder, parser_of

SHOWN, STRANGERS = 12, 14  # photos of an item, and labelled photos of unknown items
BUNDLE = "quickstart/bundle quickstart/gallery"
STEPS: Mapping[str, str] = {
    "quickstart": "quickstart photos --backbone efficientnet-lite0 --no-serve",
    "search": f"search {BUNDLE} query.jpg --top-k 3",
    "truth": f"search {BUNDLE} labelled.csv --truth item_id -o answers.jsonl",
    "calibrate": f"calibrate {BUNDLE} --queries labelled.csv",
    "audit": f"audit {BUNDLE} --report audit.html",
    "check": "data check photos",
    "train": "train photos --backbone efficientnet-lite0 --all-items --precompute 8 -o quickstart/run",
    "evaluate": "evaluate quickstart/run",
    "explain": "explain quickstart/run",
    "export": "export quickstart/run -o better",
    "index": "index better photos -o better-gallery --windows",
    "calibrate better": "calibrate better better-gallery --queries labelled.csv",
    "info": "gallery info better-gallery",
}
BEGINS = {"quickstart": "┌"}  # of the first line that is shown, where not all are


def lay_out(data: Path, folder: Path) -> None:
    """Write the catalogue, the labelled photos and a query."""
    photos = [photo for photo in read_catalogue(data / "data" / "grocery" / "grocery.csv") if photo.source != ICONIC]
    generator, by_item = np.random.default_rng(0), dict[str, list[Photo]]()
    for photo in photos:
        by_item.setdefault(photo.item_id, []).append(photo)
    items = [item for item in generator.permutation(sorted(by_item)).tolist() if len(by_item[item]) > SHOWN + 1]
    rows = [("path", "item_id")]
    for place, item in enumerate(items[: CLASSES + STRANGERS]):
        chosen = [by_item[item][row] for row in generator.permutation(len(by_item[item]))[: SHOWN + 2].tolist()]
        known = place < CLASSES
        (folder / "phone").mkdir(exist_ok=True)
        shutil.copy(chosen[0].path, folder / "phone" / f"{place}.jpg")
        rows.append((f"phone/{place}.jpg", item if known else ""))
        if known:
            (folder / "photos" / item).mkdir(parents=True)
            for photo in chosen[1 : SHOWN + 1]:
                shutil.copy(photo.path, folder / "photos" / item)
    shutil.copy(folder / "phone" / "3.jpg", folder / "query.jpg")
    with (folder / "labelled.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def printed(step: str, folder: Path) -> list[str]:
    """Run a step, and return the lines that it prints; raise CalledProcessError if it fails."""
    words = [sys.executable, "-m", "retrieval", *shlex.split(STEPS[step])]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    first = next((row for row, line in enumerate(lines) if line.startswith(BEGINS.get(step, ""))), 0)
    return [line for line in lines[first:] if line]


def main() -> None:
    """Run every step and record its lines."""
    parser = parser_of(__doc__)
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    with Recorder("first_hour", arguments) as record, tempfile.TemporaryDirectory() as folder:
        lay_out(data, Path(folder))
        for step in STEPS:
            record.table(step, ("line",), [(line,) for line in printed(step, Path(folder))])


if __name__ == "__main__":
    main()
