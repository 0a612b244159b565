"""Export of a run on all items: its model and its fold models, from which a gallery gets the threshold."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import FITTED, FOLDS, GOLDEN, Bundle, write_bundle
from retrieval.bundle.embedder import Embedder, pack_golden
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.bundle.providers import INT8
from retrieval.catalogue.photos import Photo
from retrieval.errors import InvalidParameter
from training.loop.run import Run
from training.model import FoldModels

from .onnx_writer import write_onnx
from .variants import REFERENCE, ModelExporter, Variant, check_parity, embed_with_onnx, embed_with_torch

COMPARED = 32  # photos that the ONNX models are compared with torch on


def export_cross_fitted(
    run: Run, path: Path, *, target_fpir: float, variant: Variant, item_distance: ItemDistance
) -> Bundle:
    """Write the bundle of a run on all items to `path` and return it. The galleries of these items set its threshold.

    Raises RunError if an ONNX model differs too much from torch, and InvalidParameter for int8, whose distances differ
    too much from those of the fold models, which are in fp32, and for --verify, since they compare no local features.
    """
    if item_distance.details:
        raise InvalidParameter("--verify", "be left out for a run on all items", True)
    if variant.precision == INT8:
        raise InvalidParameter("precision", "be fp32 or fp16 for a run on all items", INT8)
    with tempfile.TemporaryDirectory() as folder:
        exporter, folds = ModelExporter(run, Path(folder)), Path(folder) / FOLDS
        model, photos = exporter.make(variant), exporter.photos[:COMPARED]
        expected = embed_with_torch(run, exporter.model, photos).vectors
        parity = check_parity(embed_with_onnx(model.embedder, photos)[0].vectors, expected, variant)
        models = FoldModels(
            [fold.best_model() for fold in run.folds], share_backbone=run.settings.precompute > 0
        ).eval()
        write_onnx(models, folds, size=run.preprocessing.size)
        _check_folds(run, folds, photos)
        return write_bundle(
            path,
            model=model.onnx,
            preprocessing=run.preprocessing,
            dim=run.settings.embedding_size,
            operating_point=OperatingPoint.uncalibrated(target_fpir),
            item_distance=item_distance,
            precision=variant.precision,
            provider=variant.provider,
            evidence={
                "parity": {**parity, "photos": len(photos)},
                "protocol": vars(run.protocol),
                "training_items": len(run.splits.fit),
                "folds": len(run.folds),
                "form": {"precision": variant.precision, "provider": variant.provider, "made": model.method},
                "comparison": run.comparison,
                "settings": run.settings.to_dict(),
            },
            files={
                FITTED: run.fitted_on().pack(),
                GOLDEN: pack_golden(model.embedder),
                FOLDS: folds.read_bytes(),
            },
        )


def _check_folds(run: Run, onnx: Path, photos: list[Photo]) -> None:
    """Raise RunError if the ONNX fold models differ too much from torch."""
    found = embed_with_onnx(Embedder(onnx, run.preprocessing), photos)[0].vectors
    expected = [embed_with_torch(fold, fold.best_model(), photos).vectors for fold in run.folds]
    check_parity(found, np.concatenate(expected, axis=1) / np.sqrt(len(expected), dtype=np.float32), REFERENCE)
