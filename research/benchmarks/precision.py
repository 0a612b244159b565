"""Speed and accuracy of int8 (or fp16) models compared with fp32: photos per second, cosine, OPIS, TPIR.

    python -m research.benchmarks.precision runs/grocery-benchmark/Smooth-AP-0 runs/grocery-benchmark/ProxyAnchor-0

Both models are exported as by `retrieval export`; each fits the distance that fp32 chooses on its own embeddings. The
queries are photos of items unseen in training: the test items, and the test and calibration items together (the
calibration threshold is not used here). Speed is that of the model alone, from scaled pixels to vectors. The models
alternate in short rounds and medians are compared; the middle half of the ratios within rounds shows the variation, and
CPU-seconds exclude other processes. The interval of TPIR at exactly FPIR 0.05 resamples items, the same for both
models, and sets the threshold of each model anew.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from retrieval.bundle.providers import CPU
from retrieval.images import to_tensor
from retrieval.metrics.consistency import opis, search_opis
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from training.data.splits import photos_in_protocol
from training.evaluation.evaluate import item_labels, make_evaluation_split, score_split
from training.export.comparison import images_per_second, medians
from training.export.exported_models import ExportedModel, ModelExporter, embed_with_torch
from training.export.onnx_embedding import embed_with_onnx
from training.export.variants import Variant
from training.loop.run import Run

from .tables import NONE, Recorder, Row, parser_of

TARGET, DRAWS = 0.05, 2000


def tpir(scores: SearchScores) -> float:
    """Return TPIR at exactly the target FPIR on these queries."""
    return identification_rates(scores, threshold_at_fpir(scores, TARGET)).tpir


def paired_interval(one: SearchScores, other: SearchScores, generator: np.random.Generator) -> tuple[float, float]:
    """Return the 95 % interval of TPIR of `other` minus that of `one`, by bootstrap over items."""
    queries = [np.flatnonzero(one.labels == item) for item in np.unique(one.labels)]
    found = []
    for _ in range(DRAWS):
        drawn = np.concatenate([queries[item] for item in generator.integers(len(queries), size=len(queries))])
        sampled = [
            SearchScores(s.labels[drawn], s.own[drawn], s.impostor[drawn], s.gallery_items) for s in (one, other)
        ]
        found.append(tpir(sampled[1]) - tpir(sampled[0]))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def speed(models: list[ExportedModel], tensor: np.ndarray, *, threads: int, rounds: int, cpu: bool = False) -> Row:
    """Return a row of photos per second (wall clock or CPU) of fp32 and the other model."""
    batch = len(tensor)
    embedders = [model.variant.embedder(model.onnx, model.embedder.preprocessing, threads=threads) for model in models]
    clock = time.process_time if cpu else time.perf_counter
    rates = images_per_second(embedders, tensor, rounds=rounds, repeat=max(1, 16 // batch), clock=clock)
    slow, fast = medians(rates)
    low, high = np.percentile(np.divide(rates[1], rates[0]), [25, 75])
    name = f"images/{'CPU-' if cpu else ''}s, batch {batch}, {threads} thread{'s' if threads > 1 else ''}"
    told = f"{fast / slow:.2f}× (rounds {low:.2f} to {high:.2f})"
    return Row(name, f"{fast:.0f}", f"{slow:.0f}", told)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--provider", default="cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(max(arguments.threads))
    variant = Variant(arguments.precision, arguments.provider)
    columns = ("what", variant.describe(), "fp32", "ratio or difference")
    with Recorder("precision", arguments) as record:
        for path in arguments.runs:
            rows = compare(Run.open(path), variant, arguments.threads, arguments.rounds)
            record.table(path.name, columns, rows)


def compare(run: Run, variant: Variant, thread_counts: Sequence[int], rounds: int) -> list[Row]:
    """Return the speed, fidelity and metrics of a variant of a run, compared with fp32."""
    unseen = {"test": run.splits.test, "test and calibration": (*run.splits.test, *run.splits.calibration)}
    photos = photos_in_protocol(run.photos(), unseen["test and calibration"], run.protocol)
    eval_splits = {name: make_evaluation_split(name, photos, items, run.protocol) for name, items in unseen.items()}
    labels = item_labels(photos)
    with tempfile.TemporaryDirectory() as folder:
        exporter = ModelExporter(run, Path(folder), target_fpir=TARGET)
        made = [exporter.reference, exporter.make(variant)]
        rows = []
        pixels = made[0].embedder.read([photo.read() for photo in photos[:32]])
        tensor = to_tensor(pixels, run.preprocessing)
        for threads in thread_counts:
            rows += [speed(made, tensor[:n], threads=threads, rounds=rounds) for n in (1, 32)]
        if variant.provider in (CPU, "openvino"):
            rows += [speed(made, tensor[:n], threads=1, rounds=rounds, cpu=True) for n in (1, 32)]
        vectors = [embed_with_onnx(model.embedder, photos)[0].vectors for model in made]
        sizes = [model.onnx.stat().st_size / 2**20 for model in made]
        trained = made[1].whitened(embed_with_torch(run, exporter.model, photos).vectors)
    cosines = (trained * vectors[1]).sum(axis=1)
    rows += [
        Row("cosine to fp32, mean", f"{cosines.mean():.4f}"),
        Row("cosine to fp32, 1st percentile", f"{np.percentile(cosines, 1):.4f}"),
    ]
    for name, split in eval_splits.items():
        scores = [
            score_split(split, v, labels, distance_form=f.choice.distance_form)
            for v, f in zip(vectors, made, strict=True)
        ]
        low, high = paired_interval(scores[0], scores[1], np.random.default_rng(0))
        rates = [tpir(s) for s in scores]
        rows.append(
            Row(
                f"TPIR at exactly FPIR {TARGET:g}, {len(unseen[name])} {name} items",
                f"{rates[1]:.3f}",
                f"{rates[0]:.3f}",
                f"{rates[1] - rates[0]:+.3f} [{low:+.3f}, {high:+.3f}]",
            )
        )
    pairs, searches = [opis(v, labels).value for v in vectors], [search_opis(s, TARGET).value for s in scores]
    rows += [
        Row("OPIS of pairs", f"{pairs[1]:.2e}", f"{pairs[0]:.2e}", f"{pairs[1] / pairs[0] - 1:+.1%}"),
        Row("OPIS of searches", f"{searches[1]:.2e}", f"{searches[0]:.2e}", f"{searches[1] / searches[0] - 1:+.1%}"),
        Row("MiB of model.onnx", f"{sizes[1]:.1f}", f"{sizes[0]:.1f}", f"{sizes[1] / sizes[0]:.2f}×"),
    ]
    asked = f"{len(split.queries)} queries of {len(unseen['test and calibration'])} items that training never saw"
    backbone = Path(run.settings.backbone).name
    print(f"\n{variant.describe()} ({made[1].method}) and fp32 on the CPU, {backbone}, {asked}")
    for form in made:
        chosen = form.choice.tried[0]
        told = f"{chosen['form']}, k = {chosen.get('k', NONE)}, {'' if chosen['whitened'] else 'not '}whitened"
        print(f"{form.variant.describe()}: distance {told}")
    return rows


if __name__ == "__main__":
    main()
