"""Measure two pretrained models as one (`retrieval export --pretrained NAME --and NAME`) beside each alone.

    python -m research.benchmarks.pair

Photos are embedded by the bundles that the command writes. R@1 is that of the test partition's queries in its gallery.
TPIR is that at exactly 5 % FPIR: the items outside the training partition are split into known and unknown halves, as
in `research.benchmarks.pretrained`, which has the same sets of photos. Nothing is fitted or chosen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo
from training.config import LITE0
from training.export.pretrained import Pretrained, export_pretrained
from training.export.variants import embed_with_onnx

from .pretrained import data_sets, divisions, recall_at_1
from .tables import Recorder, parser_of

MOBILENET = "weights/mobilenet_v1_0.75_224"
FIRST, SECOND, BOTH, LARGE = "Lite0, 160 pixels", "MobileNet, 224 pixels", "both, 160 pixels", "both, 224 pixels"
RATIO = "ratio of both, 160 pixels, to Lite0"

Loader = Callable[[], Pretrained]


def loaders(data: Path) -> Mapping[str, Loader]:
    """Return what loads each model; a pair has the input size of its first model."""
    mobilenet = str(data / MOBILENET)
    return {
        FIRST: lambda: Pretrained.load(LITE0),
        SECOND: lambda: Pretrained.load(mobilenet),
        BOTH: lambda: Pretrained.load_pair(LITE0, mobilenet),
        LARGE: lambda: Pretrained.load_pair(mobilenet, LITE0),
    }


def vectors_in(path: Path, load: Loader, photos: Sequence[Photo], bundle: Path) -> np.ndarray:
    """Return the vectors (n, d) of photos by a model's bundle, from a file if it exists."""
    if not path.exists():
        opened = Bundle.open(bundle) if bundle.exists() else export_pretrained(load(), bundle)
        np.save(path, embed_with_onnx(opened.embedder(), photos)[0].vectors)
    return np.asarray(np.load(path, allow_pickle=False))


def main() -> None:
    """Measure every data set and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/pair"), help="Folder for bundles and vectors.")
    parser.add_argument("--repetitions", type=int, default=20)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    models = loaders(data)
    recall, found = [], []
    for name, file, photos in data_sets(data):
        used = [photo for photo in photos if file == "grocery" or photo.partition != "train"]
        rates = []
        for number, load in enumerate(models.values()):
            path = arguments.output / f"{file}-{number}.npy"
            vectors = vectors_in(path, load, used, arguments.output / f"bundle-{number}")
            runs = divisions(vectors, used, arguments.repetitions)
            rates.append((recall_at_1(vectors, used), float(np.mean([run.tpir(run.exact) for run in runs]))))
        recall.append((name, *(f"{first:.3f}" for first, _ in rates)))
        found.append((name, *(f"{tpir:.3f}" for _, tpir in rates), f"{rates[2][1] / rates[0][1]:.2f}"))
    with Recorder("pair", arguments) as record:
        record.table("first", ("R@1", *models), recall)
        record.table("found", ("TPIR at exactly 0.05", *models, RATIO), found)


if __name__ == "__main__":
    main()
