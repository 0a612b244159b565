"""A run becomes a bundle: ONNX that proves itself equal, one threshold from photos kept for nothing else."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from retrieval.bundle import CALIBRATION, REPORT, Bundle, write_bundle
from retrieval.calibration import OperatingPoint, calibrate
from retrieval.catalogue import Photo
from retrieval.certainty import auroc, choose_cut, risk_coverage, without_uncertain, wrong_answers
from retrieval.consistency import FAR_RANGE, opis_of_ranges, utility_curves
from retrieval.embedder import Embedder, Embeddings
from retrieval.errors import BundleError, InvalidParameter, RunError
from retrieval.identification import SearchScores
from retrieval.images import Appearance, open_image, thumbnail
from retrieval.pair_protocol import calibrate_pairs
from retrieval.recalibration import Searches, pack_searches
from retrieval.report import ReportData, render_report
from retrieval.targets import Target

from .data import PhotoReader
from .density import DistanceChoice, Whitening, choose_distance, validation_scene
from .embedding import embed_with_norms
from .evaluation import Scene, item_labels, make_scene, score_scene
from .model import EmbeddingModel, ExportModel
from .run import Run
from .trainer import protocol_photos

OPSET = 18
FAR_RANGES = (FAR_RANGE, (1e-4, 1e-3), (1e-3, 1e-2), (1e-2, 5e-2), (1e-1, 3e-1))  # of pairs, in the report
PICTURES = 4  # of each of the worst items in the report
PARITY = 1e-5  # largest difference of a component between torch and ONNX


def export(
    run: Run,
    path: Path,
    *,
    target_fpir: float = 0.05,
    allow_estimate: bool = False,
    gallery_size: int | None = None,
    target: Target | None = None,
    reject_uncertain: bool = False,
    pairs_far_range: tuple[float, float] | None = None,
) -> Bundle:
    """Write `path` as a bundle and return it.

    The threshold is chosen on the calibration items, through the ONNX model and the search code that serves, for a
    gallery of `gallery_size` items (by default as many as there are calibration items). A `target` of another kind
    replaces the FPIR; distances are compared at the latter all the same. With `reject_uncertain` searches of low
    certainty are answered with a no-match, below the cut that helps the validation items most. With `pairs_far_range`
    the threshold is one for 1:1 use, chosen on pairs within these false-accept rates, by a plain distance.
    Raises RunError when the ONNX model differs from torch by more than 1e-5 a component, CalibrationError
    when no threshold keeps the promise, BundleError when `path` exists.
    """
    if path.exists():
        raise BundleError(f"{path} exists and bundles are immutable", remedy="Choose a new name")
    if pairs_far_range is not None and (target is not None or gallery_size is not None or reject_uncertain):
        raise InvalidParameter("protocol pairs", "stand without options of searches", pairs_far_range)
    if target is not None and target.fpir is not None:
        target_fpir = target.fpir
    settings, splits, protocol = run.settings, run.splits, run.protocol
    if not splits.calibration:
        raise RunError(
            "the run kept no calibration items",
            remedy="Give some items the partition calibration and train again",
        )
    model = run.best_model()
    photos = protocol_photos(run.photos(), splits.calibration, protocol)
    fit = protocol_photos(run.photos(), [*splits.fit, *splits.validation], protocol)
    vectors, norms = _embed_with_torch(run, model, fit)
    choice = choose_distance(
        fit, vectors, splits, protocol, target_fpir=target_fpir, only_plain=pairs_far_range is not None
    )
    scene = make_scene("calibration", photos, splits.calibration, protocol)
    with tempfile.TemporaryDirectory() as folder:
        onnx = Path(folder) / "model.onnx"
        write_onnx(model, onnx, size=settings.size, whitening=choice.whitening)
        embedder = Embedder(onnx, run.preprocessing, threads=torch.get_num_threads())
        made, appearances = embed_with_onnx(embedder, photos)
        exported, certainties = made.vectors, made.certainties[scene.queries]
        trained, _ = _embed_with_torch(run, model, photos)
        if choice.whitening is not None:
            trained = choice.whitening(trained)
        difference = float(np.abs(exported - trained).max())
        if difference > PARITY:
            raise RunError(
                f"the ONNX model differs from torch by {difference:.1e} a component, more than {PARITY:g}",
                remedy="Train in fp32, or report the backbone: its export is not faithful",
            )
        labels = np.array([photo.item_id for photo in photos])
        measure = choice.measure
        searches = score_scene(scene, exported, labels, measure=measure)
        cut, cuts = 0.0, dict[float, float]()
        if reject_uncertain:
            asked = validation_scene(fit, splits, protocol)
            used = vectors if choice.whitening is None else choice.whitening(vectors)
            validated = score_scene(asked, used, item_labels(fit), measure=measure)
            cut, cuts = choose_cut(validated, norms[asked.queries], target_fpir)
        scores = without_uncertain(searches, certainties, cut)
        groups = _groups(scene, photos)
        photo_ids = np.array([photos[i].photo_id for i in scene.queries])
        if pairs_far_range is None:
            point = calibrate(
                scores,
                target_fpir=target_fpir if target is None else target.as_fpir(scores),
                allow_estimate=allow_estimate,
                groups=groups,
                seen_labels=[*splits.fit, *splits.validation],
                gallery_size=gallery_size,
            )
            point = replace(point, min_certainty=cut)
        else:
            items = [photo.item_id for photo in photos]
            point = calibrate_pairs(exported, items, scores, far_range=pairs_far_range, allow_estimate=allow_estimate)
        flips = decision_flips(searches, score_scene(scene, trained, labels, measure=measure), point.threshold)
        wrong, mated = wrong_answers(searches), searches.mated
        evidence: dict[str, Any] = {
            "protocol": vars(protocol),
            "calibration_items": list(splits.calibration),
            "training_items": len(splits.fit) + len(splits.validation),
            "parity": {"largest_difference": difference, "photos": len(photos), "decision_flips": flips},
            "distances_tried": choice.tried,
            "certainty": {
                "auroc_of_a_wrong_first_answer": auroc(certainties[mated], wrong[mated]),
                "risk_at_full_coverage": float(wrong[mated].mean()),
                "mean_risk_over_coverage": risk_coverage(certainties[mated], wrong[mated]).area,
                "cut": cut,
                "fnir_of_cuts_tried": {f"{tried:.4g}": fnir for tried, fnir in cuts.items()},
            },
            "validation": (run.progress.get("best") or {}).get("figures", {}),
            "settings": settings.to_dict(),
        }
        asked_by = (exported[scene.queries], appearances[scene.queries])
        return write_bundle(
            path,
            model=onnx,
            preprocessing=run.preprocessing,
            dim=settings.dim,
            operating_point=point,
            measure=measure,
            evidence=evidence,
            files={
                CALIBRATION: pack_searches(Searches(searches, groups, photo_ids, certainties, *asked_by)),
                REPORT: _report(point, scores, choice, exported, photos).encode(),
            },
        )


def _report(
    point: OperatingPoint, scores: SearchScores, choice: DistanceChoice, vectors: np.ndarray, photos: Sequence[Photo]
) -> str:
    items = [photo.item_id for photo in photos]

    def pictures(item: str) -> list[bytes]:
        mine = [photo for photo in photos if photo.item_id == item][:PICTURES]
        return [thumbnail(open_image(photo.read())) for photo in mine]

    return render_report(
        ReportData(
            point,
            scores,
            choice.tried,
            pair_curves=utility_curves(vectors, items, np.linspace(0, 2, 101)[1:]),
            pair_opis=dict(zip(FAR_RANGES, opis_of_ranges(vectors, items, far_ranges=FAR_RANGES), strict=True)),
            photos=pictures,
        )
    )


def _embed_with_torch(run: Run, model: EmbeddingModel, photos: Sequence[Photo]) -> tuple[np.ndarray, np.ndarray]:
    reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
    return embed_with_norms(model, reader, len(photos), run.preprocessing, progress=True)


def write_onnx(model: EmbeddingModel, path: Path, *, size: int, whitening: Whitening | None = None) -> None:
    """Write one self-contained ONNX file: pixels (n, 3, size, size) to `embedding` and `certainty`."""
    parts = None
    if whitening is not None:
        parts = torch.from_numpy(whitening.mean).float(), torch.from_numpy(whitening.matrix).float()
    wrapped = ExportModel(model.cpu().float(), whitening=parts).eval()
    example = torch.zeros(2, 3, size, size)
    with _quiet_exporter():
        torch.onnx.export(
            wrapped,
            (example,),
            str(path),
            input_names=["pixels"],
            output_names=["embedding", "certainty"],
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes={"pixels": {0: torch.export.Dim("n", min=1, max=4096)}},
            external_data=False,
            verbose=False,
        )


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Hush what the exporter says about its own future and about torchvision; its errors still come through."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def embed_with_onnx(
    embedder: Embedder, photos: Sequence[Photo], *, batch_size: int = 32
) -> tuple[Embeddings, np.ndarray]:
    """Return the embeddings of the photos as the served model sees them, and their appearances (n, 3)."""
    blocks, looks = [], []
    for start in tqdm(range(0, len(photos), batch_size), desc="embedding with ONNX", unit="batch"):
        pixels = embedder.read([photo.read() for photo in photos[start : start + batch_size]])
        blocks.append(embedder.embed_pixels(pixels))
        looks += [astuple(Appearance.of(square)) for square in pixels]
    made = Embeddings(
        np.concatenate([block.vectors for block in blocks]), np.concatenate([block.certainties for block in blocks])
    )
    return made, np.array(looks, dtype=np.float32)


def decision_flips(one: SearchScores, other: SearchScores, threshold: float) -> int:
    """Return how many queries are answered differently: own item accepted, or another one."""
    own = (one.own <= threshold) != (other.own <= threshold)
    impostor = (one.impostor <= threshold) != (other.impostor <= threshold)
    return int((own | impostor).sum())


def _groups(scene: Scene, photos: Sequence[Photo]) -> np.ndarray | None:
    """Return the group of each query, or None where the catalogue names none: then items are the clusters."""
    groups = np.array([photos[i].group for i in scene.queries])
    return groups if all(groups) else None
