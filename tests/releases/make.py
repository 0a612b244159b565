"""Make the files of a release, which later versions must open.

  python -m tests.releases.make tests/releases/0.2.0.tar.xz

Run it once per release, after its last change of a format. The archive holds drawn photos, a run that was killed after
its first epoch, a finished run on all items, its bundle, a gallery of the photos, the gallery's backup, and answers.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ITEMS, PHOTOS, ASKED = 22, 4, 5
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


def write_photos(folder: Path, *, items: range = range(ITEMS), photos: range = range(PHOTOS)) -> None:
    """Write one folder of photos per item."""
    for item in items:
        (folder / f"item-{item:02d}").mkdir(parents=True)
        for number in photos:
            path = folder / f"item-{item:02d}" / f"{number}.png"
            draw(item, number).save(path, optimize=True)
            os.utime(path, (WRITTEN, WRITTEN))


def write_backbone(folder: Path) -> None:
    """Write an image model of a few hundred random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"embedding_size": 2, "hidden_sizes": [2, 8], "depths": [1, 1], "layer_type": "basic"}
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(folder)
    transformers.ConvNextImageProcessor(size={"shortest_edge": 32}).save_pretrained(folder)


def answers(bundle: str, gallery: str) -> list[dict[str, Any]]:
    """Return the answers to photos that are not in the gallery: of its items, and of unknown ones."""
    from retrieval.retriever import Retriever

    retriever = Retriever.open(bundle, gallery)
    found = [retriever.search(draw(item, PHOTOS)) for item in (*range(ASKED), *range(ITEMS, ITEMS + ASKED))]
    return [
        {
            "decision": result.decision,
            "threshold": result.threshold,
            "matches": [asdict(match) for match in result.matches],
        }
        for result in found
    ]


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
    call("export", "run", "-o", "bundle", "--allow-estimate", "--target-fpir", "0.3", "--even-if-worse")
    call("index", "bundle", "photos", "-o", "gallery")
    call("gallery", "export", "gallery", "gallery.parquet")
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
