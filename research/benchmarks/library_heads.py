"""Heads by pytorch-metric-learning beside those of `retrieval train`, judged in the same mixed galleries.

    python -m research.benchmarks.library_heads --output runs/head_start

The heads have the same features, start, steps and batches (`research.benchmarks.head_start`). The library trains as its
guide does: Adam, and a miner where a loss has one. OPIS is that of the searches.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from research.losses.library import library
from training.config import Settings
from training.data.samplers import ItemSampler
from training.loop.head_start import start_head
from training.loop.optimizer import schedule

from .head_start import COLUMNS, LOSS_CASES, PRETRAINED, Division, Features, Sets, cells, measure, trained
from .tables import Recorder, parser_of

OURS = "retrieval train"
PEERS = {  # losses of the library, and whether their heads begin at the same start
    "multi-similarity": ("MultiSimilarityLoss", True),
    "Proxy Anchor": ("ProxyAnchorLoss", True),
    "ArcFace": ("ArcFaceLoss", True),
    "multi-similarity from random weights": ("MultiSimilarityLoss", False),
}


def by_peer(features: Features, division: Division, *, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the embeddings of all photos (n, d): ours, and those of heads by pytorch-metric-learning."""
    yield PRETRAINED, features.published
    views, items = features.views[:, division.fitted], features.items[division.fitted]
    labels = np.unique(items, return_inverse=True)[1]
    for name, (loss, started) in {OURS: ("", True), **PEERS}.items():
        torch.manual_seed(seed)
        head = nn.Linear(views.shape[2], views.shape[2])
        if started:
            start_head(head, views, items)
        head = (
            trained_by_peer(head, views, labels, loss, seed=seed)
            if loss
            else trained(head, views, items, seed=seed, recipe={})
        )
        with torch.no_grad():
            yield name, head(torch.from_numpy(features.views[0])).numpy()


def trained_by_peer(head: nn.Linear, views: np.ndarray, labels: np.ndarray, loss: str, *, seed: int) -> nn.Linear:
    """Return the head after the steps and batches of `trained`, with a loss of pytorch-metric-learning."""
    settings = schedule(Settings(catalogue=""), photos=len(labels), items=int(labels.max()) + 1)
    classes = {"num_classes": int(labels.max()) + 1}
    make = getattr(library("losses"), loss)
    criterion = make() if loss == "MultiSimilarityLoss" else make(**classes, embedding_size=head.out_features)
    miner = library("miners").MultiSimilarityMiner() if loss == "MultiSimilarityLoss" else None
    rates = ((head, 1e-3), (criterion, 1e-2))
    optimizer = torch.optim.Adam([{"params": list(part.parameters()), "lr": rate} for part, rate in rates])
    sampler = ItemSampler(labels.tolist(), items_per_batch=16, photos_per_item=4, seed=seed, steps=settings.epoch_steps)
    every, targets = torch.from_numpy(views), torch.from_numpy(labels)
    for positions in itertools.chain.from_iterable(sampler.epoch(epoch) for epoch in range(settings.epochs)):
        chosen = every[torch.randint(len(views), (len(positions),)), positions]
        vectors = head(chosen)
        value = criterion(vectors, targets[positions], miner and miner(vectors, targets[positions]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return head


def main() -> None:
    """Measure every set and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/head_start"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", help="Measure this set alone.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = Sets(Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), arguments.output)
    with Recorder("library_heads", arguments) as record:
        record.table("peers", COLUMNS)
        every: dict[str, list[dict[str, float]]] = {}
        for name, (items, photos) in LOSS_CASES:
            if arguments.only not in (None, name):
                continue
            features, found = sets.of(name), dict[str, list[dict[str, float]]]()
            for seed in range(arguments.repetitions):
                division = Division.draw(features, items, photos, seed=seed)
                for model, vectors in by_peer(features, division, seed=seed):
                    found.setdefault(model, []).append(measure(vectors, features, division))
            for model, values in found.items():
                record.add(f"{name}, {model}", *cells(values, found[PRETRAINED]))
                every.setdefault(model, []).extend(values)
        for model, values in every.items():
            record.add(f"all sets, {model}", *cells(values, every[PRETRAINED]))


if __name__ == "__main__":
    main()
