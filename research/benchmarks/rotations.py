"""One threshold for unseen items: four rotations of the item families of grocery, with several seeds.

    python -m research.benchmarks.rotations --output runs/rotations

Families are numbered in the order in which `group` values first appear. In rotation r, families with number mod 4 = r
are the test set, those with (r + 2) mod 4 the calibration set, and the others train (a fifth of them, by family, for
validation). Heads on frozen features are trained on each; rotations r and r + 2 share the training because only test
and calibration are exchanged. The distance to the nearest photo and the item
distance get a threshold for FPIR 5 % from the calibration items. Printed are the realised FPIR, TPIR at that threshold
and at exactly 5 %, misidentification and OPIS: by rotation for the item distance, and as means over rotations for both.
Intervals are clustered by family. An interrupted benchmark continues.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from index.search.distance import accepts
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import Splits, make_evaluation_protocol, make_splits, photos_in_protocol
from retrieval.measuring.fpir import DrawnDistances
from retrieval.metrics.consistency import opis
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from training.backbones import backbone_preprocessing, load_backbone
from training.config import Settings
from training.data.augmentation import Augmentation
from training.data.reader import PhotoReader, evaluation_batches
from training.evaluation.embedding import to_device
from training.evaluation.evaluate import item_labels, make_evaluation_split, score_split

from .heads import VIEWS, FrozenFeatures, Task, open_set_metrics, train_head, vectors_of
from .rotation_tables import EVAL_SPLITS, ROTATIONS, report
from .tables import Recorder, parser_of

TARGET = 0.05
DISTANCES = {"nearest photo": NEAREST_PHOTO, "item distance": ItemDistance()}
CHOSEN = "item distance"  # the one that bundles use
RECIPES: dict[str, dict[str, Any]] = {
    "EL-nivMF + ProxyAnchor": {
        "loss": "vmf_nca",
        "arguments": {"concentration": 50.0, "norm": 60.0, "anchor_weight": 0.3},
    },
    "Smooth-AP": {"loss": "smooth_ap", "arguments": {"temperature": 0.01}},
}


def rotated(photos: Sequence[Photo], rotation: int) -> list[Photo]:
    """Return the photos with the partition of a rotation."""
    families = list(dict.fromkeys(photo.group for photo in photos))
    number = {family: place % ROTATIONS for place, family in enumerate(families)}
    parts = {rotation: "test", (rotation + 2) % ROTATIONS: "calibration"}
    return [dataclasses.replace(photo, partition=parts.get(number[photo.group], "train")) for photo in photos]


@torch.inference_mode()
def features_of(photos: Sequence[Photo], path: Path, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return backbone features of augmented views (views, n, w) and of plain photos (n, w), computed once."""
    if not path.exists():
        settings = Settings(catalogue="", backbone=str(data / "weights/mobilenet_v1_0.75_224"))
        backbone, _ = load_backbone(settings.backbone)
        sight = backbone_preprocessing(settings.backbone, size=settings.input_size, crop_ratio=settings.crop_ratio)
        backbone.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def features(pixels: np.ndarray) -> np.ndarray:
            maps = backbone(to_device(pixels, sight, torch.device("cpu")))
            return np.asarray(maps.mean(dim=(2, 3)).numpy())

        reader, augment, generator = PhotoReader(photos, sight), Augmentation(settings), np.random.default_rng(0)
        blocks = np.split(np.arange(len(photos)), range(64, len(photos), 64))
        views = [
            np.concatenate([features(np.stack([augment(reader[int(i)], generator) for i in b])) for b in blocks])
            for _ in tqdm(range(VIEWS), desc="augmented views")
        ]
        plain = np.concatenate([features(b) for b in evaluation_batches(reader, range(len(photos)))])
        np.savez(path, views=np.stack(views), plain=plain)
    with np.load(path, allow_pickle=False) as file:
        return file["views"], file["plain"]


def head_features(photos: list[Photo], views: np.ndarray, plain: np.ndarray, splits: Splits) -> FrozenFeatures:
    """Return the training data of a head in one rotation."""
    fit_photos = photos_in_protocol(photos, splits.fit, make_evaluation_protocol(photos))
    place = {photo.photo_id: i for i, photo in enumerate(photos)}
    fit = np.array([place[photo.photo_id] for photo in fit_photos])
    chosen = torch.from_numpy(views[:, fit])
    mean, scale = chosen.mean(dim=(0, 1)), chosen.std()
    return FrozenFeatures(photos, splits, (chosen - mean) / scale, (torch.from_numpy(plain) - mean) / scale, fit)


def measured(photos: list[Photo], splits: Splits, vectors: np.ndarray) -> dict[str, Any]:
    """Return the metrics of both distances."""
    labels, protocol = item_labels(photos), make_evaluation_protocol(photos)
    groups = np.array([photo.group for photo in photos])
    trained = [*splits.fit, *splits.validation]
    eval_splits = [
        make_evaluation_split(name, photos, items, protocol)
        for name, items in zip(EVAL_SPLITS, (splits.test, trained, [*splits.test, *trained]), strict=True)
    ]
    calibration = make_evaluation_split("calibration", photos, splits.calibration, protocol)
    found: dict[str, Any] = {"distances": {}}
    members = np.union1d(eval_splits[0].queries, eval_splits[0].gallery)
    consistency = opis(vectors[members], labels[members]).value
    for name, item_distance in DISTANCES.items():
        calibrated = score_split(calibration, vectors, labels, item_distance=item_distance)
        threshold = threshold_at_fpir(calibrated, TARGET)
        metrics: dict[str, Any] = {"OPIS": consistency}
        for split in eval_splits:
            scores = score_split(split, vectors, labels, item_distance=item_distance)
            rates = identification_rates(scores, threshold)
            metrics[split.name] = {
                "R@1": float(np.isfinite(scores.correct).mean()),
                "FPIR": rates.fpir,
                "TPIR": rates.tpir,
                "misidentification": rates.misidentification,
                "TPIR at 5 %": open_set_metrics(scores, TARGET)["TPIR"],
                "FPIR by family": by_family(scores, threshold, groups[split.queries]),
            }
        found["distances"][name] = metrics
    finite = np.isfinite(calibrated.impostor)
    drawn = DrawnDistances.of_items(calibrated.impostor[finite], groups[calibration.queries][finite])
    return found | {"chosen": CHOSEN, "told": list(drawn.on_other_half(TARGET))}


def by_family(scores: SearchScores, threshold: float, families: np.ndarray) -> list[list[float]]:
    """Return the errors and queries of each family."""
    names = np.unique(families)
    wrong = accepts(scores.impostor, threshold)
    return [[float(wrong[families == name].sum()), float((families == name).sum())] for name in names]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/rotations"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=RECIPES, help="Train with this recipe alone.")
    arguments = parser.parse_args()
    place = arguments.output / "heads"
    place.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    whole = read_catalogue(data / "data/grocery/grocery.csv")
    photos = photos_in_protocol(whole, sorted({photo.item_id for photo in whole}), make_evaluation_protocol(whole))
    recipes = [arguments.only] if arguments.only else list(RECIPES)
    results: dict[str, dict[str, Any]] = {}
    todo = list(itertools.product(range(arguments.seeds), recipes, range(ROTATIONS)))
    for seed, recipe, rotation in tqdm(todo, desc="rotations"):
        path = place / f"{recipe.replace(' ', '')}-{rotation}-{seed}.json"
        if not path.exists():
            rotated_photos = rotated(photos, rotation)
            splits = make_splits(rotated_photos)
            views, plain = features_of(photos, arguments.output / "features.npz", data)
            features = head_features(rotated_photos, views, plain, splits)
            head, _ = train_head(features, Task(seed=seed, **RECIPES[recipe]))
            vectors = vectors_of(features, head)[0]
            path.write_text(json.dumps(measured(rotated_photos, splits, vectors)))
        results[f"{recipe}/{rotation}/{seed}"] = json.loads(path.read_text())
    with Recorder("rotations", arguments) as record:
        report(results, recipes, arguments.seeds, record)


if __name__ == "__main__":
    main()
