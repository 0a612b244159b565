"""Loggers of a run's metrics: accelerate's trackers for TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from retrieval.errors import InvalidParameter, MissingDependency

PROJECT, LOGGERS = "retrieval", ("tensorboard", "wandb", "mlflow")


def check_loggers(names: str) -> list[str]:
    """Return the loggers of a comma-separated list; raise for one that is unknown or not installed."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    for name in listed:
        if name not in LOGGERS:
            raise InvalidParameter("loggers", f"be among {', '.join(LOGGERS)}", name)
        if find_spec(name) is None:
            raise MissingDependency(f"the logger {name} is not installed", remedy=f"pip install {name}")
    return listed


@contextmanager
def open_loggers(
    names: str, path: Path, settings: Mapping[str, Any], *, step: int
) -> Iterator[Callable[[Mapping[str, float], int], None]]:
    """Open the loggers of a comma-separated list, and yield a function that logs the metrics of a step to all."""
    from accelerate import PartialState, tracking

    PartialState()  # which trackers ask for the main process
    same_run = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    options: dict[str, tuple[str, dict[str, Any]]] = {
        "tensorboard": ("tensorboard", {"logging_dir": path, "purge_step": step}),
        "wandb": (PROJECT, {"name": path.name, "dir": str(path), "id": same_run, "resume": "allow"}),
        "mlflow": (PROJECT, {"run_name": path.name}),
    }
    trackers: list[Any] = []

    def log(metrics: Mapping[str, float], step: int) -> None:
        values = {name.replace(" ", "_").replace("@", "_at_"): value for name, value in metrics.items()}
        for tracker in trackers:
            tracker.log(values, step=step)

    try:
        for name in check_loggers(names):
            title, arguments = options[name]
            trackers.append(tracking.LOGGER_TYPE_TO_CLASS[name](title, **arguments))
            trackers[-1].start()
            if name != "tensorboard":
                trackers[-1].store_init_configuration(dict(settings))
        yield log
    finally:
        for tracker in trackers:
            tracker.finish()
