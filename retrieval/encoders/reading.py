"""The image input and the outputs of an ONNX file of another maker, and the file run directly.

Shapes: n photos, d = length of the vector, t tokens, c channels, h and w = sides of a map.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.providers import import_onnxruntime
from retrieval.errors import EncoderRefused, InvalidParameter, importing, listed

KINDS = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(uint8)": "uint8"}
OTHER_KINDS = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(bool)": "bool"}
VECTORS = (  # names of vectors, best first
    r"image_embed(ding)?s?",
    r"pooler_output|pooled(_output)?",
    r"(sentence_|image_)?(embed(ding)?s?|features?)",
)
TOKENS = "last_hidden_state"
SCORES = r"logit|prob|softmax|class|score"  # names of what a classifier gives
CLASSES = (1000, 1001, 21841, 21843)  # of ImageNet
NO_VECTOR = 99
MOST_BATCH = 256  # photos of a run
MOST_WORDS = 300  # characters of what ONNX Runtime says
REMEDIES = {  # of a file that cannot be loaded, by what ONNX Runtime says
    "opset|IR version": "Write it again with an older opset, or upgrade onnxruntime",
    "not a registered function/op": "Write it again with the standard operators of ONNX, for this one is of its maker",
    "": "Check that the file is whole",
}


@dataclass(frozen=True)
class ImageInput:
    """The input of an encoder that takes photos."""

    name: str
    kind: str  # of its numbers, as numpy names it
    last: bool  # whether the channels come last: (n, h, w, 3), else (n, 3, h, w)
    batch: int | None  # photos of a run, None if it takes any number
    side: int | None  # in pixels, None if it takes any size

    def __str__(self) -> str:
        """Return the name, the shape and the kind of numbers."""
        n, side = self.batch or "n", self.side or "any"
        shape = f"({n}, {side}, {side}, 3)" if self.last else f"({n}, 3, {side}, {side})"
        return f"{self.name} {shape} {self.kind}"


@dataclass(frozen=True)
class VectorOutput:
    """The output of an encoder that is the vector, or becomes it."""

    name: str
    shape: tuple[int, ...]  # with the photos in front
    how: str  # how it becomes a vector
    axes: tuple[int, ...] = ()  # of a map, over which the mean is taken

    def __str__(self) -> str:
        """Return how the vector is made: "the first token of last_hidden_state (n, 50, 768)"."""
        shape = ", ".join(["n", *map(str, self.shape[1:])])
        return f"{self.how} {self.name} ({shape})"

    def vectors(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return the vectors (n, d) of values of the output, before they are scaled to length one."""
        if self.axes:
            values = values.astype(np.float64).mean(axis=self.axes)
        return (values[:, 0] if values.ndim == 3 else values).astype(np.float64)


class EncoderFile:
    """An ONNX file, loaded and run as it is.

    Raises EncoderRefused if it cannot be loaded, as with operators of its maker, or does not have one image input.
    """

    def __init__(self, path: Path, *, threads: int) -> None:
        self.path = path
        onnx, onnxruntime = import_onnx(), import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        try:
            self.model = onnx.load(path, load_external_data=False)
            self.is_external = any(map(onnx.external_data_helper.uses_external_data, self.model.graph.initializer))
            onnx.external_data_helper.load_external_data_for_model(self.model, str(path.parent))
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # protobuf, onnx and ONNX Runtime raise many types
            words = _words(error)
            remedy = next(remedy for said, remedy in REMEDIES.items() if re.search(said, words))
            raise EncoderRefused(f"{path} cannot be loaded: {words}", remedy=remedy) from error
        self.image = _image_input(path, self._session.get_inputs())

    def choose(self, named: str | None, pixels: NDArray[np.float32]) -> VectorOutput:
        """Return the output that is the vector: `named`, or the best by name and shape.

        `pixels` are scaled pixels (n, 3, h, w) to run the file with.
        """
        inputs = {entry.name for entry in self._session.get_inputs()}
        names = [output.name for output in self._session.get_outputs()]
        if named is not None and named not in names:
            raise InvalidParameter("--output", f"be one of {listed(names)}", named)
        needs = {name: ancestors(self.model.graph, name) & inputs for name in names if named in (None, name)}
        of_image = [name for name, needed in needs.items() if needed == {self.image.name}]
        if not of_image:
            also = sorted(set().union(*needs.values()) - {self.image.name})
            told = f"no output of {self.path} is of the image alone: {listed(names)} need {listed(also) or 'no input'}"
            raise EncoderRefused(told, remedy="Write the image encoder to a file of its own")
        values = self._run(of_image, pixels[: self.image.batch or 1])
        shapes = {name: array.shape for name, array in zip(of_image, values, strict=True)}
        chosen = named or _best(self.path, shapes)
        return _as_vector(self.path, chosen, shapes[chosen], last=self.image.last)

    def vectors(self, output: VectorOutput, pixels: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the vectors (n, d) of scaled pixels (n, 3, h, w), not of length one.

        Photos run one at a time, or in the file's own batches, which are filled up with the last photo.
        """
        count, batch = len(pixels), self.image.batch or 1
        padded = np.concatenate([pixels, np.repeat(pixels[-1:], -count % batch, axis=0)])
        parts = [self._run([output.name], padded[start : start + batch])[0] for start in range(0, len(padded), batch)]
        return output.vectors(np.concatenate(parts)[:count])

    def _run(self, names: Sequence[str], pixels: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Return outputs for scaled pixels (n, 3, h, w) of one run; the other inputs are filled with ones."""
        values = np.moveaxis(pixels, 1, -1) if self.image.last else pixels
        values = (np.rint(values) if self.image.kind == "uint8" else values).astype(self.image.kind)
        try:
            others = {entry.name: _ones(entry) for entry in self._session.get_inputs() if entry.name != self.image.name}
            return list(self._session.run(list(names), {self.image.name: values, **others}))
        except Exception as error:  # ONNX Runtime raises many types, and inputs may be too large
            remedy = "Check --size, and that the file is an image encoder"
            raise EncoderRefused(f"{self.path} does not run: {_words(error)}", remedy=remedy) from error


def ancestors(graph: Any, output: str) -> set[str]:
    """Return the names of all values that a value of an ONNX graph is computed from, and its own."""
    makers = {name: node for node in graph.node for name in node.output}
    names, waiting = set[str](), [output]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += used_by(makers[name]) if name in makers else []
    return names


def used_by(node: Any) -> list[str]:
    """Return the names of the values that a node uses, in graphs within it too."""
    graphs = [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)]
    return [*node.input, *(name for graph in graphs for inner in graph.node for name in used_by(inner))]


def import_onnx() -> Any:
    """Import onnx, after ONNX Runtime with telemetry disabled."""
    import_onnxruntime()
    with importing("onnx", "export"):
        import onnx
        import onnx.external_data_helper
    return onnx


def _words(error: Exception) -> str:
    """Return what ONNX Runtime says, without the lines of its own code."""
    return re.sub(r"/onnxruntime_src/\S+ .*?\) (?=[A-Z])", "", " ".join(str(error).split()))[:MOST_WORDS]


def _image_input(path: Path, entries: Sequence[Any]) -> ImageInput:
    """Return the one image among the inputs of a session; raise EncoderRefused if there is none, or several."""
    shapes = {
        entry.name: [side if isinstance(side, int) and side > 0 else None for side in entry.shape] for entry in entries
    }
    kinds = {entry.name: KINDS.get(entry.type) for entry in entries}
    images = [
        name
        for name, shape in shapes.items()
        if len(shape) == 4 and kinds[name] and (shape[1] in (3, None) or shape[3] == 3)
    ]
    shown = listed([f"{entry.name} {entry.shape} {entry.type}" for entry in entries])
    if len(images) != 1:
        number = "several image inputs" if images else "no image input (n, 3, side, side) or (n, side, side, 3)"
        raise EncoderRefused(
            f"{path} has {number}: {shown}", remedy="Write an encoder of one photo to a file of its own"
        )
    shape, kind = shapes[images[0]], kinds[images[0]]
    last = shape[1] != 3 and shape[3] == 3
    sides = set(shape[1:3] if last else shape[2:4])
    if len(sides - {None}) > 1:
        told = f"{path} takes photos that are not square: {shown}"
        raise EncoderRefused(told, remedy="Write it again with a square input")
    if (shape[0] or 1) > MOST_BATCH:
        told = f"{path} takes {shape[0]:,} photos at a time"
        raise EncoderRefused(told, remedy=f"Write it again with a batch of at most {MOST_BATCH} photos")
    return ImageInput(images[0], str(kind), last, shape[0], next(iter(sides - {None}), None))


def _ones(entry: Any) -> NDArray[Any]:
    """Return an input filled with ones; sides of any length are 1."""
    sides = [side if isinstance(side, int) else 1 for side in entry.shape]
    return np.ones(sides, KINDS.get(entry.type) or OTHER_KINDS.get(entry.type, "float32"))


def _best(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the output that is the vector, by name and then by shape; raise EncoderRefused unless it is one."""
    ranks = {name: _rank(name.lower(), shape) for name, shape in shapes.items()}
    best = [name for name, rank in ranks.items() if rank == min(ranks.values())]
    shown = listed([f"{name} {shape}" for name, shape in shapes.items()])
    if ranks[best[0]] == NO_VECTOR:
        told = f"{path} gives no vector of an image by its names and shapes: {shown}"
        remedy = (
            "Scores of classes tell photos of other things apart badly: cut the file at the features before them "
            "(onnx.utils.extract_model), or take the scores with --output NAME"
        )
        raise EncoderRefused(told, remedy=remedy)
    if len(best) > 1:
        raise EncoderRefused(f"{path} has several outputs that may be the vector: {shown}", remedy="Pass --output NAME")
    return best[0]


def _rank(name: str, shape: tuple[int, ...]) -> int:
    """Return a number of an output that is smaller the better it suits as the vector."""
    flat = len(shape) == 2 or (len(shape) == 4 and (shape[2:] == (1, 1) or shape[1:3] == (1, 1)))
    named = next((place for place, names in enumerate(VECTORS) if re.fullmatch(names, name)), None)
    if flat and named is not None:
        return named
    if re.search(SCORES, name) or (flat and max(shape[1:]) in CLASSES) or len(shape) not in (2, 3, 4):
        return NO_VECTOR
    return len(VECTORS) + (0 if flat else 1 if name == TOKENS else len(shape) - 1)


def _as_vector(path: Path, name: str, shape: tuple[int, ...], *, last: bool) -> VectorOutput:
    """Return how an output becomes a vector; `last` says where the channels of a map are if its shape does not."""
    if len(shape) == 2:
        return VectorOutput(name, shape, "the output")
    if len(shape) == 3:
        return VectorOutput(name, shape, "the first token of")
    if len(shape) == 4:
        if (shape[1] == shape[2]) != (shape[2] == shape[3]):
            last = shape[1] == shape[2]
        return VectorOutput(name, shape, "the mean of the map", (1, 2) if last else (2, 3))
    raise EncoderRefused(f"the output {name} of {path} has the shape {shape}", remedy="Name another one with --output")
