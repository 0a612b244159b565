"""Make the files of a release, which later versions must open.

  python -m tests.releases.make tests/releases/0.3.0.tar.xz

Two programs were called 0.2.0, with draws of different fields: 0.2.0.tar.xz is of 2026-11-24, the other of 2026-11-26.
Run it once per release, after its last change of a format. The archive holds drawn photos, a run that was killed after
its first epoch, a finished run on all items, its bundle, a gallery, the gallery's backup, and answers.
The gallery keeps draws of every kind: by the model of the bundle, by fold models, with windows, with several photos and
with labelled photos. Two of its items are a group.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from retrieval.search.result import SearchResult

ITEMS, MORE, PHOTOS, ASKED = 16, 5, 3, 5  # items that the run was trained on and further ones, photos, searches
GROUPED, LABELLED = (14, 15), 6  # items of one group, and labelled photos of known and of unknown items
WRITTEN = 1_700_000_000  # whole seconds, which an archive keeps exactly
SETTINGS: dict[str, Any] = {
    "catalogue": "photos",
    "backbone": "backbone",
    "size": 32,
    "dim": 8,
    "epochs": 2,
    "items_per_batch": 4,
    "learning_rate": 0.0,
    "flip": False,
}


def draw(item: int, number: int) -> Image.Image:
    """Return a photo of an item: 4x4 blocks of its own colours, darker or lighter as a whole. Its file is small."""
    pattern = np.random.default_rng(item).integers(40, 216, (4, 4, 3))
    shade = np.random.default_rng((item, number)).integers(-12, 13, 3)
    return Image.fromarray(np.kron(np.clip(pattern + shade, 0, 255), np.ones((5, 5, 1))).astype(np.uint8))


def item_id(item: int) -> str:
    """Return the id of an item: its folder, which lies in another one if the item has a group."""
    return f"group/item-{item:02d}" if item in GROUPED else f"item-{item:02d}"


def write_photos(folder: Path, *, items: Iterable[int] = range(ITEMS), photos: Iterable[int] = range(PHOTOS)) -> None:
    """Write one folder of photos per item."""
    for item in items:
        (folder / item_id(item)).mkdir(parents=True)
        for number in photos:
            path = folder / item_id(item) / f"{number}.png"
            draw(item, number).save(path, optimize=True)
            os.utime(path, (WRITTEN, WRITTEN))


def write_labelled(table: Path) -> None:
    """Write further photos of items of the gallery and of unknown items, and a table of their item ids."""
    number, known, unknown = PHOTOS + 1, range(ITEMS + MORE - LABELLED, ITEMS + MORE), range(40, 40 + LABELLED)
    write_photos(table.with_suffix(""), items=(*known, *unknown), photos=[number])
    lines = [f"labelled/{item_id(item)}/{number}.png,{item_id(item)}" for item in known]
    lines += [f"labelled/{item_id(item)}/{number}.png," for item in unknown]
    table.write_text("\n".join(["path,item_id", *lines]) + "\n")


def write_backbone(folder: Path) -> None:
    """Write an image model of a few hundred random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"embedding_size": 2, "hidden_sizes": [2, 8], "depths": [1, 1], "layer_type": "basic"}
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(folder)
    transformers.ConvNextImageProcessor(size={"shortest_edge": 32}).save_pretrained(folder)


def answers(bundle: str | Path, gallery: str | Path) -> dict[str, Any]:
    """Return what a gallery answers to photos that it does not have, and the rates of its threshold.

    The photos show items of the run, one of them of the group, further items of the gallery, and unknown items. Each
    item is searched for with one photo, and with two.
    """
    from retrieval.retriever import Retriever

    items = *range(ASKED), GROUPED[0], ITEMS, ITEMS + 1, *range(60, 60 + ASKED)
    with Retriever.open(bundle, gallery) as retriever:
        point, rates = retriever.gallery_point.measured()
        assert rates is not None
        return {
            "status": point.status,
            "rates": {
                "threshold": point.threshold,
                "target_fpir": point.target_fpir,
                "fpir_expected": rates.expected(point.threshold),
                "fpir_upper": rates.fpir_upper(point.threshold),
            },
            "photos": [answer(retriever.search(draw(item, PHOTOS), review=1)) for item in items],
            "two photos": [
                answer(retriever.search_photos([draw(item, number) for number in (PHOTOS, PHOTOS + 2)]))
                for item in items
            ],
        }


def answer(result: SearchResult) -> dict[str, Any]:
    """Return what decides in an answer, as plain JSON values."""
    kept = {name: getattr(result, name) for name in ("decision", "reason", "threshold", "threshold_status")}
    return kept | {name: [asdict(match) for match in getattr(result, name)] for name in ("matches", "review", "ranked")}


def make(archive: Path) -> None:
    """Write the archive."""
    from click.testing import CliRunner

    from retrieval.cli.main import group

    def call(*words: object) -> None:
        done = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
        if done.exit_code:
            raise SystemExit(done.output)

    write_photos(Path("photos"))
    write_backbone(Path("backbone"))
    lines = [f"{name} = {json.dumps(value)}" for name, value in SETTINGS.items() if name != "catalogue"]
    Path("settings.toml").write_text("\n".join(lines) + "\n")
    begin()
    call("train", "photos", "--config", "settings.toml", "--all-items", "-o", "run")
    call("export", "run", "-o", "bundle", "--target-fpir", "0.3", "--even-if-worse")
    write_photos(Path("more"), items=range(ITEMS, ITEMS + MORE))
    write_labelled(Path("labelled.csv"))
    for catalogue in ("photos", "more"):
        call("index", "bundle", catalogue, "-o", "gallery", "--windows")
    call("calibrate", "bundle", "gallery", "--queries", "labelled.csv")
    call("gallery", "export", "gallery", "backup")
    Path("answers.json").write_text(json.dumps(answers("bundle", "gallery"), indent=1) + "\n")
    for folder in list(Path().rglob("tensorboard")):
        shutil.rmtree(folder)
    with tarfile.open(archive, "w:xz", preset=9) as file:
        for path in sorted(path for path in Path().rglob("*") if path.is_file()):
            file.add(path)


def begin() -> None:
    """Write a run that was killed after its first epoch."""
    from training.config import Settings
    from training.loop.train import train

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        train(Settings.from_dict(SETTINGS), Path("begun"), on_epoch=kill)
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make(target)
    print(f"Wrote {target}: {target.stat().st_size:,} bytes.")
