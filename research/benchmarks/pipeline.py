"""Speed of training with photos decoded on the fly, compared with precomputed batches.

    python -m research.benchmarks.pipeline --rounds 5

The benchmark uses the default recipe (160 pixels, 16 items × 4 photos) on grocery with the MobileNet backbone of
RETRIEVAL_TEST_DATA. Rounds are interleaved, and ratios are taken against the model alone in the same round; load from
other processes then affects all sides alike. CPU time, which depends less on other processes, is printed for a step
with its pipeline, and for the pipeline alone as a share of the model's.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from retrieval.catalogue.read import Photo, read_catalogue
from training.backbones import backbone_preprocessing, load_backbone
from training.config import Settings
from training.data.reader import Augmentation, PhotoReader, training_batches
from training.data.samplers import ItemSampler
from training.data.splits import make_splits
from training.evaluation.embedding import to_device
from training.loop.memory import keep_freed_memory
from training.losses import make_loss
from training.model import EmbeddingModel, freeze_batch_norm

from .devices import CPU, add_device, device_of, synchronize
from .tables import NONE, Recorder, parser_of

Batch = tuple[np.ndarray, np.ndarray]


class Step:
    """One training step of the default recipe."""

    def __init__(self, settings: Settings, labels: Sequence[int], device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        backbone, _ = load_backbone(settings.backbone)
        self.preprocessing = backbone_preprocessing(
            settings.backbone, size=settings.input_size, crop_ratio=settings.crop_ratio
        )
        model = EmbeddingModel(backbone, dim=settings.embedding_size, pooling=settings.pooling)
        self._model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._model.train()
        freeze_batch_norm(self._model)
        self._loss = make_loss(settings.loss, classes=len(set(labels)), dim=settings.embedding_size, arguments={})
        self._loss = self._loss.to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=settings.learning_rate)
        self._labels = torch.tensor(labels, device=device)

    def __call__(self, batch: Batch) -> None:
        positions, pixels = batch
        self._optimizer.zero_grad(set_to_none=True)
        embeddings = self._model(to_device(pixels, self.preprocessing, self.device))
        self._loss(embeddings, self._labels[positions]).backward()
        self._optimizer.step()


class Pipeline:
    """Batches from one kind of source, over several epochs."""

    def __init__(self, reader: PhotoReader, settings: Settings, sampler: ItemSampler) -> None:
        self._reader, self._settings, self._sampler = reader, settings, sampler
        self._epoch = 0

    def __call__(self) -> Iterator[Batch]:
        self._epoch += 1
        return training_batches(
            self._reader,
            Augmentation(self._settings),
            self._sampler.epoch(self._epoch),
            seed=(self._settings.seed, self._epoch),
            threads=self._settings.decoders,
        )


def timed(step: Step, batches: Iterable[Batch], steps: int) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of some steps, without the first."""
    stream = iter(batches)
    step(next(stream))
    synchronize(step.device)
    started, spent = time.perf_counter(), time.process_time()
    for batch in itertools.islice(stream, steps):
        step(batch)
    synchronize(step.device)
    seconds = time.perf_counter() - started, time.process_time() - spent
    if isinstance(stream, Iterator) and hasattr(stream, "close"):
        stream.close()
    return seconds


def pipeline_cost(batches: Iterable[Batch]) -> float:
    """Return the CPU seconds per photo of an epoch, without a model."""
    spent, photos = time.process_time(), 0
    for positions, _ in batches:
        photos += len(positions)
    return (time.process_time() - spent) / photos


def shards_of(photos: Sequence[Photo], folder: Path) -> list[Photo]:
    """Return the same photos in tar shards of 1,000."""
    folder.mkdir()
    for start in range(0, len(photos), 1000):
        with tarfile.open(folder / f"{start:06d}.tar", "w") as shard:
            for number, photo in enumerate(photos[start : start + 1000], start):
                for name, data in ((f"{number:06d}.jpg", photo.read()), (f"{number:06d}.cls", photo.item_id.encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    shard.addfile(member, io.BytesIO(data))
    return read_catalogue(folder)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="steps of each source in a round")
    add_device(parser)
    arguments = parser.parse_args()
    device = device_of(arguments)
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    settings = Settings(
        catalogue=str(data / "data/grocery/grocery.csv"), backbone=str(data / "weights/mobilenet_v1_0.75_224"), dim=128
    )
    photos = read_catalogue(Path(settings.catalogue))
    fit = set(make_splits(photos, seed=settings.split_seed).fit)
    photos = [photo for photo in photos if photo.item_id in fit]
    items = sorted(fit)
    labels = [items.index(photo.item_id) for photo in photos]
    sampler = ItemSampler(
        labels,
        items_per_batch=settings.items_per_batch,
        photos_per_item=settings.photos_per_item,
        seed=settings.seed,
    )
    if device.type == CPU:
        keep_freed_memory()  # as in training
    step = Step(settings, labels, device)
    with tempfile.TemporaryDirectory() as place:
        readers = {
            "JPEG files": PhotoReader(photos, step.preprocessing, cache_bytes=0),
            "tar shards": PhotoReader(shards_of(photos, Path(place) / "shards"), step.preprocessing, cache_bytes=0),
            "cache in memory": PhotoReader(photos, step.preprocessing),
            "cache on disk": PhotoReader(photos, step.preprocessing, cache_bytes=0, cache_dir=Path(place) / "cache"),
        }
        for name in ("cache in memory", "cache on disk"):
            readers[name].pixels(range(len(photos)))
            readers[name].publish()
        measure(step, {name: Pipeline(reader, settings, sampler) for name, reader in readers.items()}, arguments)


def measure(step: Step, sources: dict[str, Pipeline], arguments: argparse.Namespace) -> None:
    """Run all sources in turn and print the table."""
    ready = list(
        itertools.islice(sources["cache in memory"](), arguments.steps + 1)
    )  # decoded, cropped and colour-augmented
    photos = sum(len(positions) for positions, _ in ready[1:])
    alone: list[tuple[float, float]] = []  # wall-clock and CPU seconds per round
    whole: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
    decoding: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(arguments.rounds + 1):
        made = timed(step, ready, arguments.steps)
        alone += [made] if number else []  # the first round is a warm-up
        for name, source in sources.items():
            made = timed(step, source(), arguments.steps)
            whole[name] += [made] if number else []
            decoding[name] += [pipeline_cost(source())] if number else []

    def rate(rounds: list[tuple[float, float]]) -> str:
        return f"{photos / statistics.median(clock for clock, _ in rounds):.1f}"

    own = statistics.median(spent for _, spent in alone) / photos
    columns = (
        "source",
        "photos per second",
        "of the model alone",
        "CPU per photo",
        "CPU of the pipeline alone, per photo",
    )
    with Recorder("pipeline", arguments) as record:
        record.table("pipeline", columns)
        record.add("model alone, no pipeline", rate(alone), NONE, f"{1e3 * own:.1f} ms", NONE)
        for name, rounds in whole.items():
            clock = statistics.median(one[0] / other[0] for one, other in zip(alone, rounds, strict=True))
            total = statistics.median(spent for _, spent in rounds) / photos
            made_before = statistics.median(decoding[name])
            share = f"{1e3 * made_before:.2f} ms, {made_before / own:.1%} of the model's"
            record.add(name, rate(rounds), f"{clock:.3f}", f"{1e3 * total:.1f} ms", share)


if __name__ == "__main__":
    main()
