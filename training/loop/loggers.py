"""Loggers of a run's metrics: accelerate's trackers for TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
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


class Loggers:
    """All loggers of a run."""

    def __init__(self, names: str, path: Path, settings: Mapping[str, Any], *, step: int) -> None:
        from accelerate import PartialState, tracking

        PartialState()  # which trackers ask for the main process
        same_run = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        options: dict[str, tuple[str, dict[str, Any]]] = {
            "tensorboard": ("tensorboard", {"logging_dir": path, "purge_step": step}),
            "wandb": (PROJECT, {"name": path.name, "dir": str(path), "id": same_run, "resume": "allow"}),
            "mlflow": (PROJECT, {"run_name": path.name}),
        }
        self._trackers = []
        for name in check_loggers(names):
            title, arguments = options[name]
            tracker = tracking.LOGGER_TYPE_TO_CLASS[name](title, **arguments)
            tracker.start()
            if name != "tensorboard":
                tracker.store_init_configuration(dict(settings))
            self._trackers.append(tracker)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics to every logger, under names without blanks and @."""
        values = {name.replace(" ", "_").replace("@", "_at_"): value for name, value in metrics.items()}
        for tracker in self._trackers:
            tracker.log(values, step=step)

    def close(self) -> None:
        """Flush and close."""
        for tracker in self._trackers:
            tracker.finish()


@contextmanager
def open_loggers(names: str, path: Path, settings: Mapping[str, Any], *, step: int) -> Iterator[Loggers]:
    """Yield the loggers of a comma-separated list, and close them."""
    loggers = Loggers(names, path, settings, step=step)
    try:
        yield loggers
    finally:
        loggers.close()
