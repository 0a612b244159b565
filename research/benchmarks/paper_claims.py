"""Tests of the papers' main claims on grocery, with linear heads on features of the frozen backbone.

    python -m research.benchmarks.paper_claims --output runs/heads

Each training photo is embedded in several augmented views and every other photo once. A linear embedding is trained on
these features with each loss and several seeds. Each claim is printed with a 95 % interval over seeds (paired,
Student's t) and a plain answer. The hyper-parameters of every loss are chosen from a small grid on the validation items
with three other seeds: those of a base loss by R@1, the margins of TCM by OPIS among those that lose at most 0.01 of
R@1. The test items are used for the printed values only. Finished results under --output are reused.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from .heads import GRIDS, Results, Task, load_features
from .tables import NONE, Recorder, parser_of


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and its 95 % interval (Student's t)."""
    array = np.asarray(values)
    half = stats.t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array))
    return float(array.mean()), float(array.mean() - half), float(array.mean() + half)


def shown(values: Sequence[float], *, percent: bool = False) -> str:
    mean, low, high = interval(values)
    return f"{mean:+.0%} [{low:+.0%}, {high:+.0%}]" if percent else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def mean_of(runs: Sequence[Mapping[str, Any]], metric: str) -> str:
    values = [run[metric] for run in runs]
    return f"{np.mean(values):.4f}" if metric == "OPIS" else f"{np.mean(values):.3f}"


def claim_tcm(results: Results, seeds: range, record: Recorder) -> None:
    """Record whether TCM lowers OPIS by at least 25 % without a loss of R@1."""
    columns = ("base loss", "R@1, OPIS alone", "with TCM", "change of OPIS", "change of R@1", "answer")
    record.table("TCM lowers OPIS by at least 25 % at no loss of R@1", columns)
    for loss in ("smooth_ap", "recall_at_k", "proxy_nca", "arcface"):
        name, arguments = results.tuned(loss)
        base = [results(Task(name, arguments, s)) for s in seeds]
        margins = results.tuned_tcm(name, arguments)
        both = [results(Task(name, arguments, s, tcm=margins)) for s in seeds]
        logs = [np.log(b["OPIS"] / a["OPIS"]) for a, b in zip(base, both, strict=True)]
        ends = [float(np.expm1(v)) for v in interval(logs)]
        recall = [b["R@1"] - a["R@1"] for a, b in zip(base, both, strict=True)]
        holds = ends[2] <= -0.25 and interval(recall)[2] >= 0
        record.add(
            f"{loss} {plain(arguments)}, margins {margins}",
            f"{mean_of(base, 'R@1')}, {mean_of(base, 'OPIS')}",
            f"{mean_of(both, 'R@1')}, {mean_of(both, 'OPIS')}",
            f"{ends[0]:+.0%} [{ends[1]:+.0%}, {ends[2]:+.0%}]",
            shown(recall),
            "yes" if holds else "no",
        )


def claim_better(results: Results, seeds: range, record: Recorder, ours: str, theirs: str) -> None:
    """Record whether one loss has a higher R@1 than another."""
    (name, arguments), (other, given) = results.tuned(ours), results.tuned(theirs)
    one, two = [[results(Task(n, a, s)) for s in seeds] for n, a in ((name, arguments), (other, given))]
    cells = []
    for metric in ("R@1", "MAP@R"):
        gain = [a[metric] - b[metric] for a, b in zip(one, two, strict=True)]
        cells += [mean_of(one, metric), mean_of(two, metric), shown(gain)]
    gain = [a["R@1"] - b["R@1"] for a, b in zip(one, two, strict=True)]
    answer = "yes" if interval(gain)[1] > 0 else "no"
    record.add(f"{ours} {plain(arguments)} over {theirs} {plain(given)}", *cells, answer)


def claim_robust(results: Results, seeds: range, record: Recorder) -> None:
    """Record whether the contextual loss degrades less than multi-similarity with label noise or fewer classes."""
    columns = ("training data", "contextual, R@1", "multi-similarity, R@1", "difference", "its further loss", "answer")
    record.table("The contextual loss holds up better than multi-similarity", columns)
    (name, arguments), (other, given) = results.tuned("contextual_sum"), results.tuned("multi_similarity")
    clean = [[results(Task(n, a, s)) for s in seeds] for n, a in ((name, arguments), (other, given))]
    for title, noise, share in (
        ("all, clean", 0.0, 1.0),
        ("20 % of labels wrong", 0.2, 1.0),
        ("half of the classes", 0.0, 0.5),
    ):
        changed = noise > 0 or share < 1
        runs = [
            [results(Task(n, a, s, label_noise=noise, items=share)) for s in seeds]
            for n, a in ((name, arguments), (other, given))
        ]
        gain = [a["R@1"] - b["R@1"] for a, b in zip(*runs, strict=True)]
        losses = [(d["R@1"] - b["R@1"]) - (c["R@1"] - a["R@1"]) for a, b, c, d in zip(*runs, *clean, strict=True)]
        answer = NONE if not changed else "yes" if interval(losses)[1] > 0 else "no"
        further = shown(losses) if changed else NONE
        record.add(title, mean_of(runs[0], "R@1"), mean_of(runs[1], "R@1"), shown(gain), further, answer)
    print(f"\ncontextual_sum {plain(arguments)}, multi_similarity {plain(given)}")


def claim_epochs(results: Results, seeds: range, record: Recorder) -> None:
    """Record whether the mean-field losses reach ProxyAnchor's R@1 in fewer epochs."""
    goal_name = "epochs to ProxyAnchor's mean validation R@1 less 0.01"
    columns = ("loss", "R@1, unseen", goal_name, "difference", "answer")
    record.table("The mean-field losses need fewer epochs than ProxyAnchor", columns)
    runs = {}
    for loss in ("proxy_anchor", "mean_field_contrastive", "mean_field_class_wise_multi_similarity"):
        name, arguments = results.tuned(loss)
        runs[loss, plain(arguments)] = [results(Task(name, arguments, s, every_epoch=True)) for s in seeds]
    first = next(iter(runs.values()))
    goal = float(np.mean([run["curve"][-1] for run in first])) - 0.01
    reached = {key: [epochs_to(run["curve"], goal) for run in group] for key, group in runs.items()}
    base = next(iter(reached.values()))
    for (loss, settings), group in runs.items():
        epochs = reached[loss, settings]
        saved = [a - b for a, b in zip(epochs, base, strict=True)]
        answer = NONE if group is first else "yes" if interval(saved)[2] < 0 else "no"
        difference = NONE if group is first else shown(saved)
        record.add(f"{loss} {settings}", mean_of(group, "R@1"), f"{np.mean(epochs):.1f}", difference, answer)


def epochs_to(curve: Sequence[float], goal: float) -> int:
    """Return the first epoch that reaches the goal, or the number of epochs plus one."""
    return next((epoch for epoch, value in enumerate(curve, 1) if value >= goal), len(curve) + 1)


def claim_norms(results: Results, seeds: range, record: Recorder) -> None:
    """Record how well a low norm predicts a wrong first answer."""
    columns = ("loss", "AUROC of the norm", "AUROC of the distance to the first answer", "answer")
    record.table("Low norms are the ambiguous photos", columns)
    for loss in ("vmf_nca", "vmf_nca + anchor", "proxy_nca", "smooth_ap"):
        name, arguments = results.tuned(loss)
        runs = [results(Task(name, arguments, s)) for s in seeds]
        norm, low, high = interval([run["AUROC of the norm"] for run in runs])
        distance = mean_of(runs, "AUROC of the distance")
        answer = "yes" if low > 0.5 else "no"
        record.add(f"{loss} {plain(arguments)}", f"{norm:.3f} [{low:.3f}, {high:.3f}]", distance, answer)


def every_loss(results: Results, seeds: range, record: Recorder) -> None:
    """Record every loss, without and with TCM, on items unseen in training."""
    metrics = ("R@1", "MAP@R", "OPIS", "epsilon-OPIS", "FPIR", "TPIR", "TPIR at exactly the target")
    record.table("Every loss, without and with TCM", ("loss", *metrics))
    for loss, regularized in itertools.product(GRIDS, (False, True)):
        name, arguments = results.tuned(loss)
        margins = results.tuned_tcm(name, arguments) if regularized else None
        runs = [results(Task(name, arguments, s, tcm=margins)) for s in seeds]
        title = f"{loss} {plain(arguments)}{f' + TCM {margins}' if margins else ''}"
        record.add(title, *(mean_of(runs, metric) for metric in metrics))


def plain(arguments: Mapping[str, Any]) -> str:
    return "(" + ", ".join(f"{k} {v}" for k, v in arguments.items()) + ")"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/heads"))
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # a head is too small for more threads
    features = load_features(arguments.output, Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve())
    results = Results(features, arguments.output / "results.json")
    seeds = range(arguments.seeds)
    with Recorder("paper_claims", arguments) as record:
        claim_tcm(results, seeds, record)
        pair = [f"{metric}{part}" for metric in ("R@1", "MAP@R") for part in ("", ", other", ", difference")]
        record.table("EL-nivMF beats ProxyNCA", ("claim", *pair, "answer"))
        claim_better(results, seeds, record, "vmf_nca", "proxy_nca")
        claim_better(results, seeds, record, "vmf_nca + anchor", "proxy_anchor")
        claim_robust(results, seeds, record)
        claim_epochs(results, seeds, record)
        claim_norms(results, seeds, record)
        every_loss(results, seeds, record)


if __name__ == "__main__":
    main()
