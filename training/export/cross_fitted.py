"""Export of a run on all items: its model and its fold models, from which a gallery gets the threshold."""

from __future__ import annotations

from pathlib import Path

from index.files import working_folder
from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import FITTED, FOLDS, GOLDEN, Bundle, write_bundle
from retrieval.bundle.embedder import Embedder, pack_golden
from retrieval.bundle.providers import INT8
from retrieval.errors import InvalidParameter
from retrieval.measuring.point import Point
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
    with working_folder() as folder:
        exporter, folds = ModelExporter(run, folder), folder / FOLDS
        model, photos = exporter.make(variant), exporter.photos[:COMPARED]
        fold_models = FoldModels(
            [fold.best_model() for fold in run.folds], share_backbone=run.settings.precompute > 0
        ).eval()
        write_onnx(fold_models, folds, size=run.preprocessing.size)
        parity, _ = (
            check_parity(
                embed_with_onnx(embedder, photos)[0].vectors, embed_with_torch(run, trained, photos).vectors, form
            )
            for embedder, trained, form in (
                (model.embedder, exporter.model, variant),
                (Embedder(folds, run.preprocessing), fold_models, REFERENCE),
            )
        )
        return write_bundle(
            path,
            model=model.onnx,
            preprocessing=run.preprocessing,
            dim=run.settings.embedding_size,
            operating_point=Point.uncalibrated(target_fpir),
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
