"""A tiny world for tests: products that are colour patterns, and a model without weights that tells them apart."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.bundle.bundle import Bundle, CalibrationSet, write_bundle
from retrieval.images import Preprocessing
from retrieval.measuring.draws import Probes
from retrieval.measuring.point import Point, Rates
from retrieval.metrics.identification import SearchScores

ITEMS, PHOTOS, SIDE = 20, 8, 40
SIZE, DIM = 32, 48
WORLD = (4, 2, 3, 3, 1, 5, 2, 3, 3, 4)  # photos of each item of the world
FILLED, INDEPENDENT = 40, 32  # items of the filled gallery, and those of them that are independent

T = TypeVar("T")


def draw(item: int, number: int) -> Image.Image:
    """Return a photo of an item: its own 4×4 colour pattern, shifted, with noise."""
    return Image.fromarray(_pixels(item, number))


@cache
def _pixels(item: int, number: int) -> np.ndarray:
    pattern = np.random.default_rng(item).integers(0, 256, (4, 4, 3))
    noise = np.random.default_rng((item, number)).normal(0, 12, (SIDE, SIDE, 3))
    picture = np.kron(pattern, np.ones((SIDE // 4, SIDE // 4, 1)))
    shifted = np.roll(picture, number % 3, axis=1)
    return np.clip(shifted + noise, 0, 255).astype(np.uint8)


def between(item: int, other: int) -> Image.Image:
    """Return a photo that looks half like one item and half like another one."""
    return Image.blend(draw(item, 0), draw(other, 0), 0.5)


def encode(image: Image.Image, kind: str = "JPEG") -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def write_folder(folder: Path, *, items: range = range(10), photos: range = range(3)) -> Path:
    """Write a catalogue of one folder per item."""
    for item in items:
        (folder / f"item-{item:02d}").mkdir(parents=True)
        for number in photos:
            (folder / f"item-{item:02d}" / f"{number}.png").write_bytes(_png(item, number))
    return folder


@cache
def _png(item: int, number: int) -> bytes:
    return encode(draw(item, number), "PNG")


def shuffled(values: Sequence[T], seed: int = 34) -> list[T]:
    """Return values in another order: where they are in order, faults do not show."""
    return [values[place] for place in np.random.default_rng(seed).permutation(len(values)).tolist()]


def write_model(path: Path) -> Path:
    """Write an ONNX model: 4×4 mean colours of 32 px squares, centred, scaled to unit length."""
    path.write_bytes(_model())
    return path


@cache
def _model() -> bytes:
    nodes = [
        helper.make_node("AveragePool", ["pixels"], ["pooled"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Flatten", ["pooled"], ["raw"]),
        helper.make_node("ReduceL2", ["raw", "axes"], ["certainty"], keepdims=0),
        helper.make_node("Unsqueeze", ["certainty", "axes"], ["length"]),
        helper.make_node("Div", ["raw", "length"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
        [
            helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", DIM]),
            helper.make_tensor_value_info("certainty", TensorProto.FLOAT, ["n"]),
        ],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def pack_calibration(scores: SearchScores, certainties: np.ndarray) -> bytes:
    """Return the calibration of a bundle around the tiny model, with random vectors."""
    count = len(scores.own)
    vectors = np.random.default_rng(0).normal(size=(count, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names, items = np.arange(count).astype(str), scores.labels.astype(str).tolist()
    gallery = Probes(vectors, [f"gallery {name}" for name in names], items)
    return CalibrationSet(scores, names, certainties, vectors, np.full((count, 3), 0.5, np.float32), gallery).pack()


def make_bundle(
    folder: Path,
    *,
    threshold: float = 0.5,
    name: str = "bundle",
    point: Point | None = None,
    files: Mapping[str, bytes] | None = None,
    item_distance: ItemDistance = NEAREST_PHOTO,
    evidence: Mapping[str, object] | None = None,
) -> Bundle:
    """Write a bundle around the tiny model."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_bundle(
        folder / name,
        model=write_model(folder / "tiny.onnx"),
        preprocessing=Preprocessing(size=SIZE),
        dim=DIM,
        operating_point=point or Point(threshold, "estimated", 0.05, rates=Rates(fpir=0.05)),
        files={"notes.txt": b"hello"} if files is None else files,
        item_distance=item_distance,
        evidence=evidence,
    )
