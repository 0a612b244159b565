"""Export of an ONNX encoder of another maker as a bundle, compared with the file itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.files import working_folder
from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import FITTED, GOLDEN, MODEL, VERIFICATION, Bundle, check_new, write_bundle
from retrieval.bundle.embedder import ALONE, WEIGHTS, Embedder, golden_pixels, pack_golden
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.providers import FP16, FP32, INT8
from retrieval.catalogue.read import Photo
from retrieval.errors import EncoderRefused, RetrievalError
from retrieval.images import Preprocessing, center_crop_resize, crop, open_image, to_tensor
from retrieval.measuring.point import Point
from retrieval.process import threads_of_share
from retrieval.verification.verifier import GeometricVerifier

from .adapt import Projection, adapted
from .energy import add_energy
from .layout import find_encoder
from .processor import EncoderOptions
from .reading import EncoderFile, VectorOutput, import_onnx

COMPARED = 10  # photos that the bundle is compared with the file on
TOGETHER = 3  # photos of one run that are compared with runs of one
PARITY = {FP32: 1e-5, FP16: 1e-3, INT8: 1e-3}  # largest difference between components of unit vectors
TINY = 1e-6  # a norm that is none, and a difference between the components of unit vectors
QUANTIZED = "QuantizeLinear|Integer|^QLinear"  # operators


@dataclass(frozen=True)
class Fit:
    """What was fitted to photos of a catalogue."""

    projection: Projection | None = None
    fitted: Fitted = field(default_factory=lambda: Fitted.of((), ()))  # the items and photos that it was fitted to
    evidence: Mapping[str, object] = field(default_factory=dict)
    verifier: GeometricVerifier | None = None


NOT_FITTED = Fit()
MOVED = "the fit moves the vectors of photos, and not those of texts"


@dataclass(frozen=True)
class Encoder:
    """An encoder with its preprocessing and the output that is the vector."""

    file: EncoderFile
    output: VectorOutput
    preprocessing: Preprocessing
    bgr: bool = False
    fit: Fit = NOT_FITTED
    text: Mapping[str, bytes] | None = None  # files of the text tower of the same model
    no_text: str = ""  # why there is none although it was given

    @classmethod
    def read(cls, options: EncoderOptions, folder: Path) -> Encoder:
        """Read an encoder; `folder` is a new one for files that have to be copied.

        Raises
        ------
        EncoderRefused, InvalidParameter
            If the file is no image encoder, or if something has to be said about it or is wrong.
        """
        path, processor = find_encoder(str(options.onnx), folder, preprocessor=options.preprocessor)
        file = EncoderFile(path, threads=threads_of_share())
        preprocessing = options.preprocessing(processor, side=file.image.side, raw=file.image.kind == "uint8")
        pixels = to_tensor(drawn(file.image.batch or 1, preprocessing.size), preprocessing)
        bgr = options.bgr or bool((processor or {}).get("do_flip_channel_order"))
        return cls(file, file.choose(options.output, pixels), preprocessing, bgr)

    def with_fit(self, fit: Fit) -> Encoder:
        """Return the encoder with what was fitted to a catalogue."""
        if fit.projection is None or self.text is None:
            return replace(self, fit=fit)
        return replace(self, fit=fit, text=None, no_text=MOVED)

    def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the vectors (n, d) of pixels, uint8 (n, size, size, 3), by the file itself, not of length one."""
        values = to_tensor(pixels, self.preprocessing)
        return self.file.vectors(self.output, values[:, ::-1] if self.bgr else values)

    @property
    def precision(self) -> str:
        """The precision of the file: int8 with quantized operators, fp16 with weights in fp16."""
        graph, half = self.file.model.graph, import_onnx().TensorProto.FLOAT16
        if any(re.search(QUANTIZED, node.op_type) for node in graph.node):
            return INT8
        return FP16 if any(tensor.data_type == half for tensor in graph.initializer) else FP32

    def described(self) -> Mapping[str, str]:
        """Return the evidence about the file: its name and hash, its input and the output that is the vector."""
        return {
            "file": self.file.path.name,
            "sha256": hashlib.sha256(self.file.path.read_bytes()).hexdigest(),
            "input": f"{self.file.image}",
            "channels": "blue, green, red" if self.bgr else "red, green, blue",
            "vector": f"{self.output}",
        }

    def graph(self, dim: int, *, runs: int | None) -> tuple[bytes, bytes | None]:
        """Return the bundle's model, with `energy` if it can be, and its weights if the file keeps them in other files.

        `runs` is the number of photos of each run; with None, a run takes any number.
        """
        model = adapted(
            self.file.model,
            self.file.image,
            self.output,
            size=self.preprocessing.size,
            dim=dim,
            bgr=self.bgr,
            projection=self.fit.projection,
        )
        add_energy(model)
        if runs is not None:
            import_onnx().helper.set_model_props(model, {ALONE: str(runs)})
            for value in (*model.graph.input, *model.graph.output):
                value.type.tensor_type.shape.dim[0].dim_value = runs
        if not self.file.is_external:
            return model.SerializeToString(deterministic=True), None
        with working_folder() as folder:
            import_onnx().save(model, folder / MODEL, save_as_external_data=True, location=WEIGHTS)
            weights = folder / WEIGHTS
            return (folder / MODEL).read_bytes(), weights.read_bytes() if weights.exists() else None


def export_encoder(
    encoder: Encoder,
    path: Path,
    *,
    photos: Sequence[Photo] = (),
    target_fpir: float = 0.05,
    item_distance: ItemDistance | None = None,
) -> Bundle:
    """Write an encoder as a bundle to `path` and return it. Galleries set its threshold.

    Parameters
    ----------
    photos:
        Photos to compare the bundle with the file on, together with drawn ones if they are fewer than ten.
    item_distance:
        By default `ItemDistance.default`.

    Raises
    ------
    EncoderRefused
        If the vectors are not finite or the same for all photos, or if those of the bundle differ from the file's.
    ImageRefused, BundleError
        If a photo cannot be used, or `path` exists.
    """
    check_new(path)
    shown = [_pixels(photo, encoder.preprocessing) for photo in photos[:COMPARED]]
    pixels = np.concatenate([*shown, drawn(COMPARED - len(shown), encoder.preprocessing.size)])
    features, fit = _sound(encoder, encoder.features(pixels)), encoder.fit
    expected = _unit(features if fit.projection is None else fit.projection(features))
    model, weights, embedder, parity = _proved(encoder, pixels, expected)
    files = {FITTED: fit.fitted.pack(), GOLDEN: pack_golden(embedder), **(encoder.text or {})}
    if weights is not None:
        files[WEIGHTS] = weights
    if fit.verifier is not None:
        files[VERIFICATION] = fit.verifier.pack()
    with working_folder() as folder:
        (folder / MODEL).write_bytes(model)
        return write_bundle(
            path,
            model=folder / MODEL,
            preprocessing=encoder.preprocessing,
            dim=embedder.dim,
            operating_point=Point.uncalibrated(target_fpir),
            item_distance=item_distance,
            precision=encoder.precision,
            evidence={"onnx": encoder.described(), "parity": parity, **fit.evidence},
            files=files,
        )


def _proved(
    encoder: Encoder, pixels: NDArray[np.uint8], expected: NDArray[np.float64]
) -> tuple[bytes, bytes | None, Embedder, Mapping[str, Any]]:
    """Return the bundle's model, its weights, its embedder, and how far its vectors are from the expected ones.

    Photos run together if that changes no vector, else in the file's own batches.
    Raises EncoderRefused if the vectors differ from the expected ones.
    """
    limit, batch = PARITY[encoder.precision], encoder.file.image.batch
    for runs in (None, batch or 1):
        model, weights = encoder.graph(expected.shape[1], runs=runs)
        try:
            embedder = Embedder(model, encoder.preprocessing, threads=threads_of_share(), weights=weights)
            vectors = np.concatenate([embedder.embed_pixels(photo[None]).vectors for photo in pixels])
            together = embedder.embed_pixels(pixels[:TOGETHER]).vectors
        except RetrievalError:
            if runs is None:
                continue  # the shapes of the graph hold the number of photos
            raise
        difference = float(np.abs(vectors - expected).max())
        if difference <= limit and np.abs(together - vectors[:TOGETHER]).max() <= PARITY[FP32]:
            parity = {"largest_difference": difference, "photos": len(pixels), "photos_per_run": runs}
            return model, weights, embedder, parity
    raise EncoderRefused(
        f"the bundle's vectors differ from those of {encoder.file.path} by {difference:.1e}, more than {limit:g}",
        remedy="Report this model: its graph is not rewritten correctly",
    )


def _sound(encoder: Encoder, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the vectors (n, d) of different photos; raise EncoderRefused if they cannot be those of an encoder."""
    name = f"the output {encoder.output.name} of {encoder.file.path}"
    unit = _unit(features)
    wrong = {
        "is not finite for some photos": not np.isfinite(features).all(),
        "is zero for some photos": np.linalg.norm(features, axis=1).min() <= TINY,
        f"is the same for {len(unit)} different photos": np.abs(unit - unit[0]).max() <= TINY,
    }
    for told in (told for told, holds in wrong.items() if holds):
        remedy = "Check --mean, --std and --output; a model in fp16 may overflow: use it in fp32"
        raise EncoderRefused(f"{name} {told}", remedy=remedy)
    return features


def drawn(count: int, size: int) -> NDArray[np.uint8]:
    """Return drawn photos, uint8 (n, size, size, 3)."""
    return np.concatenate(
        [np.zeros((0, size, size, 3), np.uint8), *(golden_pixels(size, seed=i) for i in range(count))]
    )


def _pixels(photo: Photo, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Return a photo, uint8 (1, size, size, 3)."""
    least = preprocessing.min_side if photo.bbox is None else 0
    return center_crop_resize(crop(open_image(photo.read(), min_side=least), photo.bbox), preprocessing)[None]


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):  # vectors without a direction are refused (`_sound`)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
