"""A world that is searched by words: the tiny model, and a text tower that knows the looks of the items by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.text_embedder import TEXT, TOKENIZER
from retrieval.measuring.point import Point, Rates

from .world import DIM, draw, make_bundle, shuffled

KNOWN = 60  # items whose names the text tower knows: thing0, thing1, ...
LENGTH = 8  # tokens
NAMED = 40  # items of the shop


def word_files(vectors: np.ndarray) -> dict[str, bytes]:
    """Return a text tower whose vector of a text is the mean of its words: row i (d,) for thingI, the last one else."""
    names = {f"thing{number}": number for number in range(len(vectors) - 1)} | {"?": len(vectors) - 1}
    tokenizer = Tokenizer(models.WordLevel(names, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(LENGTH)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["words"]),
            helper.make_node("ReduceMean", ["words", "axis"], ["text_embeds"], keepdims=0),
        ],
        "words",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "t"])],
        [helper.make_tensor_value_info("text_embeds", TensorProto.FLOAT, ["n", vectors.shape[1]])],
        [numpy_helper.from_array(vectors.astype(np.float32), "table"), helper.make_tensor("axis", 7, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return {TEXT: model.SerializeToString(), TOKENIZER: tokenizer.to_str().encode()}


def looks(count: int = KNOWN) -> np.ndarray:
    """Return the vectors (count + 1, d) of a photo of each item by the tiny model, and one that is like none."""
    pixels = np.stack([np.asarray(draw(item, 0).resize((32, 32))) for item in range(count)])
    means = pixels.reshape(count, 4, 8, 4, 8, 3).mean(axis=(2, 4)).transpose(0, 3, 1, 2).reshape(count, DIM)
    vectors = means / 255 - 0.5
    return np.vstack([vectors, np.random.default_rng(7).normal(size=(1, DIM))]) * 3  # of no unit length


def word_bundle(folder: Path, vectors: np.ndarray, name: str = "bundle") -> Bundle:
    """Write a bundle around the tiny model and a text tower. Galleries set its threshold, for an FPIR of 0.1."""
    files = {FITTED: Fitted.of([], []).pack(), **word_files(vectors)}
    point = Point(0.5, "estimated", 0.1, rates=Rates(fpir=0.05))
    return make_bundle(folder, point=point, files=files, name=name)


def write_shop(folder: Path, names: Sequence[str] = (), *, items: int = NAMED, photos: int = 2) -> Path:
    """Write a table of photos with the columns item_id, name and half; thingI is the name of item-I by default."""
    folder.mkdir(exist_ok=True)
    rows = []
    for item in range(items):
        name = names[item] if names else f"thing{item}"
        for number in range(photos):
            photo = folder / f"{item}-{number}.png"
            if not photo.exists():  # else the catalogue has changed
                draw(item, number).save(photo)
            rows.append(f"{item}-{number}.png,item-{item},{name},{item % 2}")
    (folder / "photos.csv").write_text("\n".join(["path,item_id,name,half", *shuffled(rows)]) + "\n")
    return folder / "photos.csv"
