"""A small catalogue with every kind of change, and a model without weights, to synchronize galleries with."""

from __future__ import annotations

import csv
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image

from retrieval.bundle.bundle import FITTED, Bundle, write_bundle
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.images import Preprocessing

SIZE, DIM, CELLS = 32, 48, 4  # pixels per side of the model's input, numbers of a vector, cells per side of a photo
PHOTOS_EACH = 5  # photos per item
SHARE = 20  # one photo in this many has each kind of change
HEADER = ("path", "photo_id", "item_id", "group", "bbox", "price")
KINDS = (
    *("label changed", "price changed", "group changed", "bounding box changed", "other pixels", "only a new time"),
    *("file renamed, same photo_id", "file and photo_id renamed", "not in the table any more"),
)
NEW = "new"


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    path: str
    photo_id: str
    item_id: str
    group: str
    bbox: str
    price: float


@dataclass(frozen=True)
class Catalogue:
    """A bundle, and the table of a catalogue before and after its changes."""

    bundle: Bundle
    before: Path
    after: Path
    changes: Counter[str]

    @classmethod
    def write(cls, folder: Path, photos: int) -> Catalogue:
        """Write a bundle, photos and the first table; `change` writes the second one."""
        folder.mkdir(parents=True)
        lines = [_line(number) for number in range(photos)]
        for number, line in enumerate(lines):
            draw(number).save(folder / line.path)
        bundle = write_bundle(
            folder / "bundle",
            model=write_model(folder / "model.onnx"),
            preprocessing=Preprocessing(size=SIZE),
            dim=DIM,
            operating_point=OperatingPoint(0.5, "estimated", 0.05, {"fpir": 0.05}),
            files={FITTED: Fitted.of([], []).pack()},  # so that the gallery's photos set its threshold
        )
        return cls(bundle, write_table(folder / "before.csv", lines), folder / "after.csv", Counter())

    def change(self, photos: int) -> None:
        """Change the files and write the second table: each kind of change, and as many new photos as all of them."""
        folder, lines = self.before.parent, []
        for number in range(photos):
            kind = KINDS[number % SHARE] if number % SHARE < len(KINDS) else ""
            line = _changed(folder, _line(number), number, kind)
            lines += [] if line is None else [line]
            self.changes[kind or "unchanged"] += 1
        for number in range(photos, photos + photos * len(KINDS) // SHARE):
            line = _line(number)
            draw(number).save(folder / line.path)
            lines.append(line)
            self.changes[NEW] += 1
        lines.append(replace(_line(photos), path="broken.png", photo_id="broken.png"))
        (folder / "broken.png").write_bytes(b"no photo")
        self.changes["cannot be read"] += 1
        write_table(self.after, lines)


def draw(number: int, noise: int = 0) -> Image.Image:
    """Return a photo: the colour pattern of its item, with noise."""
    pattern = np.random.default_rng(number // PHOTOS_EACH).integers(0, 256, (CELLS, CELLS, 3))
    speckles = np.random.default_rng((number, noise)).normal(0, 20, (SIZE, SIZE, 3))
    pixels = np.kron(pattern, np.ones((SIZE // CELLS, SIZE // CELLS, 1))) + speckles
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _line(number: int) -> Line:
    name = f"{number}.png"
    return Line(name, name, f"item-{number // PHOTOS_EACH}", f"group-{number // 50}", "", number % 97 + 0.5)


def _changed(folder: Path, line: Line, number: int, kind: str) -> Line | None:
    """Return the line of a photo after a kind of change, None if it is gone; change its file if that is the change."""
    file = folder / line.path
    if kind in ("other pixels", "only a new time"):
        if kind == "other pixels":
            draw(number, noise=1).save(file)
        os.utime(file, ns=(number, number))
    if kind.startswith("file"):
        file = file.rename(folder / f"renamed-{line.path}")
    changes = {
        "label changed": replace(line, item_id=f"item-{number // PHOTOS_EACH + 1}"),
        "price changed": replace(line, price=0.25),
        "group changed": replace(line, group="another"),
        "bounding box changed": replace(line, bbox="0 0 24 24"),
        "file renamed, same photo_id": replace(line, path=file.name),
        "file and photo_id renamed": replace(line, path=file.name, photo_id=file.name),
        "not in the table any more": None,
    }
    return changes.get(kind, line)


def write_table(path: Path, lines: list[Line]) -> Path:
    """Write a table as a CSV and return its path."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *([getattr(line, name) for name in HEADER] for line in lines)])
    return path


def write_model(path: Path) -> Path:
    """Write an ONNX model whose vector is the mean colours of the cells of a photo, of length one."""
    side = SIZE // CELLS
    nodes = [
        helper.make_node("AveragePool", ["pixels"], ["pooled"], kernel_shape=[side, side], strides=[side, side]),
        helper.make_node("Flatten", ["pooled"], ["raw"]),
        helper.make_node("ReduceL2", ["raw", "axes"], ["certainty"], keepdims=0),
        helper.make_node("Unsqueeze", ["certainty", "axes"], ["length"]),
        helper.make_node("Div", ["raw", "length"], ["embedding"]),
    ]
    inputs = [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])]
    outputs = [
        helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", DIM]),
        helper.make_tensor_value_info("certainty", TensorProto.FLOAT, ["n"]),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "colours", inputs, outputs, [axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path
