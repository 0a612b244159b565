"""The claims and the trainings that each needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .sets import WHOLE
from .store import JOINT, Runs
from .training import Task

TCM_BASES = ("smooth_ap", "recall_at_k", "proxy_nca", "arcface")
BETTER = (("vmf_nca", "proxy_nca"), (JOINT, "proxy_anchor"))
ROBUST = ("contextual_sum", "multi_similarity")
CHANGES = (  # training data: title, share of wrong labels, share of the classes
    ("all, clean", 0.0, 1.0),
    ("20 % of labels wrong", 0.2, 1.0),
    ("40 % of labels wrong", 0.4, 1.0),
    ("half of the classes", 0.0, 0.5),
)
FASTER = (
    ("mean_field_contrastive", "class_averaged_contrastive"),
    ("mean_field_class_wise_multi_similarity", "class_wise_multi_similarity"),
    ("mean_field_contrastive", "proxy_anchor"),
    ("mean_field_class_wise_multi_similarity", "proxy_anchor"),
)
TCM, VMF, CONTEXT, EPOCHS = "tcm", "vmf", "contextual", "mean field"
CLAIMS = (TCM, CONTEXT, EPOCHS, VMF)


def claims_on(name: str) -> tuple[str, ...]:
    """Return the claims that are tested on a set: TCM alone with the whole network, where it costs most time."""
    return (TCM,) if name == WHOLE else CLAIMS


def tcm_pairs(runs: Runs) -> Iterator[tuple[Task, Task]]:
    """Yield the tuned task of each base loss without and with TCM."""
    for loss in TCM_BASES:
        base = runs.tuned(loss)
        yield base, runs.tuned_tcm(base)


def changed(task: Task, noise: float, classes: float) -> Task:
    """Return a task on training data with wrong labels, or with a part of the classes."""
    return dataclasses.replace(task, label_noise=noise, classes=classes)


def as_curve(task: Task) -> Task:
    """Return the task with a constant learning rate and checkpoints over its steps."""
    return dataclasses.replace(task, curve=True)


def tasks_of(claim: str, runs: Runs) -> list[Task]:
    """Return the tasks of a claim, of seed 0; the hyper-parameters are tuned first where they are not yet."""
    if claim == TCM:
        return [task for pair in tcm_pairs(runs) for task in pair]
    if claim == VMF:
        return [runs.tuned(loss) for pair in BETTER for loss in pair]
    if claim == CONTEXT:
        return [changed(runs.tuned(loss), noise, classes) for loss in ROBUST for _, noise, classes in CHANGES]
    return [as_curve(runs.tuned(loss)) for loss in dict.fromkeys(loss for pair in FASTER for loss in pair)]


def run_claim(claim: str, runs: Runs, seeds: int) -> None:
    """Run all trainings of a claim on a set, seed by seed."""
    tasks = tasks_of(claim, runs)
    for seed in range(seeds):
        for task in tasks:
            runs.test(dataclasses.replace(task, seed=seed))
