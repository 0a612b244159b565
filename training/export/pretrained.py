"""Export of a pretrained model as a bundle without a run and without a threshold, which is set in a gallery.

All items of a gallery count for its threshold, except those that the model was fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from index.files import working_folder
from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import FITTED, GOLDEN, VERIFICATION, Bundle, check_new, write_bundle
from retrieval.bundle.embedder import pack_golden
from retrieval.bundle.providers import INT8
from retrieval.bundle.text_embedder import TEXT, TOKENIZER, TextEmbedder
from retrieval.catalogue.read import Photo
from retrieval.encoders.export import MOVED, NOT_FITTED, Fit, drawn
from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing
from retrieval.measuring.point import ESTIMATED, Basis, Point
from training.backbones import PairBackbone, check_size, load_backbone, published_preprocessing, shared_size
from training.backbones.hub import resolved
from training.backbones.text_tower import TextTower, load_text_tower
from training.backbones.transformers_backbone import TransformersBackbone
from training.config import LITE0
from training.data.reader import PhotoReader, is_readable
from training.evaluation.embedding import to_device
from training.model import PretrainedModel, ProjectionLayer

from .onnx_writer import write_text_onnx
from .variants import CALIBRATION_PHOTOS, REFERENCE, Variant, check_parity, write_variant

SYNTHETIC, COMPARED = 8, 32  # synthetic images and photos that the ONNX model is compared with torch on
# The threshold at which FPIR is 5 % on average over training items of five catalogues of photos (birds, cars, covers,
# groceries, drawn symbols) and of the demo, with galleries of 100 items; and the range of what it realises, set without
# one of them, there with 200 items or more. Both are those of research/results/item_distance.json, as a test checks.
ONE_FOR_ALL = Point(1.206, ESTIMATED, 0.05, basis=Basis(least_items=200, fpir_range=(0.024, 0.060)))
TEXTS = (  # that the ONNX text tower is compared with torch on
    "red kettle with a bird",
    "Teekessel",
    "bouilloire rouge à l'oiseau",
    "чайник с птицей",
    "红色水壶",
    "غلاية حمراء",
    "a " * 400,
)


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model with its preprocessing, possibly fitted to a catalogue (`fit`)."""

    name: str
    model: PretrainedModel
    preprocessing: Preprocessing
    fit: Fit = NOT_FITTED
    text: TextTower | Mapping[str, bytes] | None = None  # the text tower of the same model, or its files for a bundle
    no_text: str = ""  # why there is none although the model has one

    @classmethod
    def load(cls, name: str, *, size: int | None = None) -> Pretrained:
        """Load a pretrained backbone by its name (`load_backbone`), with its own input size or another one."""
        preprocessing = published_preprocessing(name, size=size)
        backbone = load_backbone(name)[0]
        check_size(backbone, name, preprocessing.size)
        text, no_text = load_text_tower(resolved(name)) if isinstance(backbone, TransformersBackbone) else (None, "")
        return cls(name, PretrainedModel(backbone).eval(), preprocessing, text=text, no_text=no_text)

    @classmethod
    def load_pair(cls, first: str, second: str) -> Pretrained:
        """Load two different pretrained backbones as one (`PairBackbone`), with the preprocessing of the first.

        Their input is of the first one's size, or of the second one's where only that suits both.
        """
        if Path(first).resolve() == Path(second).resolve():
            raise InvalidParameter("--and", f"be another model than {first}", second)
        parts = {name: cls.load(name) for name in (first, second)}
        backbones = {name: part.model.backbone for name, part in parts.items()}
        published, other = (part.preprocessing for part in parts.values())
        size = shared_size(backbones, (published.size, other.size))
        backbone = PairBackbone(*backbones.values(), preprocessing=published, second_preprocessing=other)
        has_text = any(part.text is not None or part.no_text for part in parts.values())
        return cls(
            f"{first} + {second}",
            PretrainedModel(backbone).eval(),
            replace(published, size=size),
            no_text="a text tower belongs to one model alone, and these are two" if has_text else "",
        )

    def with_fit(self, fit: Fit) -> Pretrained:
        """Return the model with what was fitted to a catalogue."""
        made = replace(self, fit=fit)
        if fit.projection is None:
            return made
        model = PretrainedModel(self.model.backbone, projection=ProjectionLayer(fit.projection)).eval()
        return replace(made, model=model, text=None, no_text=self.no_text if self.text is None else MOVED)

    @torch.inference_mode()
    def features(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return the features (n, d) of preprocessed pixels, uint8 (n, size, size, 3)."""
        features: Tensor = self.model(to_device(pixels, self.preprocessing, torch.device("cpu")))
        return features

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return unit vectors (n, d) of preprocessed pixels, uint8 (n, size, size, 3)."""
        vectors: NDArray[np.float32] = F.normalize(self.features(pixels), dim=1).numpy()
        return vectors


def export_pretrained(
    pretrained: Pretrained,
    path: Path,
    *,
    target_fpir: float = 0.05,
    variant: Variant = REFERENCE,
    photos: Sequence[Photo] = (),
    item_distance: ItemDistance | None = None,
) -> Bundle:
    """Write a bundle to `path` and return it. Galleries set its threshold.

    The default model as it is, with the default item distance, brings one threshold for all catalogues (`ONE_FOR_ALL`).

    Parameters
    ----------
    target_fpir, variant:
        FPIR that galleries set their thresholds for; precision and execution provider.
    photos:
        Photos to compare the ONNX model with torch on, besides synthetic images. They also decide the ranges of int8.
    item_distance:
        By default `ItemDistance.default`.

    Raises
    ------
    RunError
        If the ONNX model differs too much from torch.
    InvalidParameter, BundleError
        If the precision is int8 and there are no photos, or `path` exists.
    """
    check_new(path)
    if variant.precision == INT8 and not photos:
        rule = "be fp32 or fp16 without photos, which decide the ranges of int8"
        raise InvalidParameter("precision", rule, INT8, remedy="Pass --fit PHOTOS")
    distance = item_distance or ItemDistance.default(verified=pretrained.fit.verifier is not None)
    readable = _readable_sample(photos)
    verified = {} if pretrained.fit.verifier is None else {VERIFICATION: pretrained.fit.verifier.pack()}
    compared = _compared(readable, pretrained.preprocessing)
    with working_folder() as folder:
        onnx = folder / "model.onnx"
        method = write_variant(pretrained.model, onnx, variant, preprocessing=pretrained.preprocessing, photos=readable)
        embedder = variant.embedder(onnx, pretrained.preprocessing, threads=torch.get_num_threads())
        parity = check_parity(embedder.embed_pixels(compared).vectors, pretrained.embed_pixels(compared), variant)
        texts = _text_files(pretrained.text, folder)
        return write_bundle(
            path,
            model=onnx,
            preprocessing=pretrained.preprocessing,
            dim=embedder.dim,
            operating_point=_point(pretrained, distance, target_fpir),
            item_distance=distance,
            precision=variant.precision,
            provider=variant.provider,
            evidence={
                "pretrained": pretrained.name,
                "parity": {**parity, "photos": len(compared)},
                "form": {"precision": variant.precision, "provider": variant.provider, "made": method},
                **pretrained.fit.evidence,
            },
            files={FITTED: pretrained.fit.fitted.pack(), GOLDEN: pack_golden(embedder), **verified, **texts},
        )


def _text_files(tower: TextTower | Mapping[str, bytes] | None, folder: Path) -> Mapping[str, bytes]:
    """Return the files of a text tower for a bundle; raise RunError if the ONNX model differs too much from torch."""
    if not isinstance(tower, TextTower):
        return tower or {}
    write_text_onnx(tower, folder / TEXT, length=tower.length)
    files = {TEXT: (folder / TEXT).read_bytes(), TOKENIZER: tower.pack_tokenizer()}
    check_parity(TextEmbedder(files[TEXT], files[TOKENIZER]).embed(TEXTS).vectors, tower.embed(TEXTS), REFERENCE)
    return files


def _point(pretrained: Pretrained, distance: ItemDistance, target_fpir: float) -> Point:
    """Return the threshold for all catalogues where it was measured for this model and distance, else none."""
    as_it_is = pretrained.name == LITE0 and pretrained.model.projection is None and distance == ItemDistance()
    serves = as_it_is and target_fpir == ONE_FOR_ALL.target_fpir
    return ONE_FOR_ALL if serves else Point.uncalibrated(target_fpir)


def _readable_sample(photos: Sequence[Photo]) -> list[Photo]:
    """Return up to CALIBRATION_PHOTOS photos, evenly spaced, without those that cannot be used."""
    spread = np.unique(np.linspace(0, len(photos) - 1, min(len(photos), CALIBRATION_PHOTOS)).astype(int))
    return [photos[i] for i in spread if is_readable(photos[i])]


def _compared(photos: Sequence[Photo], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Return synthetic images and the first photos, preprocessed: uint8 (n, size, size, 3)."""
    shown = photos[:COMPARED]
    given = [PhotoReader(shown, preprocessing, cache_bytes=0).pixels(range(len(shown)))] if shown else []
    return np.concatenate([drawn(SYNTHETIC, preprocessing.size), *given])
