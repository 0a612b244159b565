"""EL-nivMF alone, with ProxyAnchor on the same proxies (arXiv 2207.03784, Eq. 7) and on others, beside ProxyAnchor.

    python -m research.benchmarks.el_nivmf --output runs/head_start

The heads have the features, start, steps, batches and galleries of `research.benchmarks.head_start`. Finished divisions
in the output folder are not trained again. TPIR is at exactly 5 % of the searches for unknown items; OPIS, chance, the
worse half and the items never found are of each division at the threshold where a head finds as much as the one that
finds least. Differences are those to ProxyAnchor, with their standard error over the divisions.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from retrieval.metrics.consistency import at_equal_tpir
from training.config import Settings
from training.loop.head_start import start_head
from training.loop.recipe import build_loss
from training.losses import ProxyAnchor, Regularized, VonMisesFisherNCA

from .head_start import LOSS_CASES, PRETRAINED, Division, Features, Sets, measured, search, told, trained
from .tables import Recorder, parser_of

ANCHOR, UNTIED = "proxy_anchor", "vmf_nca + anchor, untied"
LOSSES: dict[str, dict[str, Any]] = {
    ANCHOR: {"loss": "proxy_anchor"},
    "vmf_nca": {"loss": "vmf_nca"},
    "vmf_nca + 0.3 anchor": {"loss": "vmf_nca", "loss_arguments": {"anchor_weight": 0.3}},
    "vmf_nca + anchor": {"loss": "vmf_nca", "loss_arguments": {"anchor_weight": 1.0}},
    UNTIED: {"loss": "vmf_nca"},
}
RATES = ("R@1 fitted", "R@1 unfitted", "R@1 both", "TPIR fitted", "TPIR unfitted", "TPIR both", "OPIS")
ALIKE = {"opis_by_chance": "OPIS by chance", "worse_half": "TPIR of the worse half", "never_found": "never found"}


def untied(settings: Settings, *, classes: int) -> nn.Module:
    """Return EL-nivMF plus ProxyAnchor with proxies of its own, as a loss and a regularizer had them before."""
    dim = settings.embedding_size
    return Regularized(VonMisesFisherNCA(classes, dim), ProxyAnchor(classes, dim), 1.0)


def by_loss(features: Features, division: Division, *, seed: int) -> dict[str, dict[str, float]]:
    """Train a head with each loss and return what it finds, and what the pretrained model finds, by name."""
    vectors = {PRETRAINED: features.published}
    views, items = features.views[:, division.fitted], features.items[division.fitted]
    for name, recipe in LOSSES.items():
        head = nn.Linear(views.shape[2], views.shape[2])
        start_head(head, views, items)
        make = untied if name == UNTIED else build_loss
        head = trained(head, views, items, seed=seed, recipe=recipe, make=make)
        with torch.no_grad():
            vectors[name] = head(torch.from_numpy(features.views[0])).numpy()
    searched = [search(each, features, division) for each in vectors.values()]
    found = [measured(scores, division) for scores in searched]
    known = [scores.where(division.parts != "unknown") for scores in searched]
    alike = at_equal_tpir(known, [values["threshold"] for values in found])
    return {
        name: values | asdict(equal) | {"OPIS": equal.opis}
        for name, values, equal in zip(vectors, found, alike, strict=True)
    }


def main() -> None:
    """Train every head and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/head_start"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=dict(LOSS_CASES), help="Measure these sets alone.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = Sets(Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), arguments.output)
    with Recorder("el_nivmf", arguments) as record:
        record.table("losses", ("items, photos, model", *RATES, *ALIKE.values()))
        every: dict[str, list[dict[str, float]]] = {}
        for name, (items, photos) in LOSS_CASES:
            if arguments.only and name not in arguments.only:
                continue
            found: dict[str, list[dict[str, float]]] = {}
            for seed in range(arguments.repetitions):
                path = arguments.output / f"el_nivmf-{name}-{seed}.json"
                if not path.exists():
                    features = sets.of(name)
                    division = Division.draw(features, items, photos, seed=seed)
                    path.write_text(json.dumps(by_loss(features, division, seed=seed)))
                for model, values in json.loads(path.read_text()).items():
                    found.setdefault(model, []).append(values)
            for model, values in found.items():
                record.add(f"{name}, {items} × {photos}, {model}", *cells(values, found[ANCHOR]))
                every.setdefault(model, []).extend(values)
        for model, values in every.items():
            record.add(f"all sets, {model}", *cells(values, every[ANCHOR]))


def cells(values: list[dict[str, float]], base: list[dict[str, float]]) -> list[str]:
    """Return a row of the table: the rates with their change, and what else the consistency is made of."""
    rates = [told(rate, values, base, plain=values is base) for rate in RATES]
    return [*rates, *(f"{np.mean([each[key] for each in values]):.3f}" for key in ALIKE)]


if __name__ == "__main__":
    main()
