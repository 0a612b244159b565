"""Loggers of a run's metrics behind one interface: TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from retrieval.errors import InvalidParameter, MissingDependency
from retrieval.files import write_file

PROJECT = "retrieval"


class Logger(Protocol):
    """Receives metrics by name and step, until it is closed."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoard:
    """Writes event files to RUN/tensorboard."""

    def __init__(self, path: Path, settings: Mapping[str, Any], step: int) -> None:  # noqa: ARG002, one shape for all
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        for name, value in metrics.items():
            self._writer.add_scalar(_tag(name), value, step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class WeightsAndBiases:
    """Logs to Weights & Biases, and resumes under the same run id. WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, path: Path, settings: Mapping[str, Any], step: int) -> None:  # noqa: ARG002
        import wandb

        known = _read_id(path, "wandb")
        self._run = wandb.init(
            project=PROJECT, name=path.name, dir=str(path), id=known, resume="allow", config=dict(settings)
        )
        _write_id(path, "wandb", self._run.id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        self._run.log({_tag(name): value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Flush and close."""
        self._run.finish()


class MLflow:
    """Logs to MLflow at MLFLOW_TRACKING_URI, and resumes under the same run id."""

    def __init__(self, path: Path, settings: Mapping[str, Any], step: int) -> None:  # noqa: ARG002
        import mlflow

        self._client = mlflow.MlflowClient()
        known = _read_id(path, "mlflow")
        if known is None:
            known_experiment = self._client.get_experiment_by_name(PROJECT)
            experiment = known_experiment.experiment_id if known_experiment else self._client.create_experiment(PROJECT)
            known = self._client.create_run(experiment, run_name=path.name).info.run_id
            _write_id(path, "mlflow", known)
            for name, value in settings.items():
                self._client.log_param(known, name, value)
        self._id = known
        self._client.update_run(known, status="RUNNING")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        for name, value in metrics.items():
            self._client.log_metric(self._id, _tag(name), value, step=step)

    def close(self) -> None:
        """Flush and close."""
        self._client.set_terminated(self._id)


LOGGERS: Mapping[str, tuple[str, Callable[[Path, Mapping[str, Any], int], Logger]]] = {  # name: package, maker
    "tensorboard": ("tensorboard", TensorBoard),
    "wandb": ("wandb", WeightsAndBiases),
    "mlflow": ("mlflow", MLflow),
}


def check_loggers(names: str) -> list[str]:
    """Return the loggers of a comma-separated list; raise for one that is unknown or not installed."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    for name in listed:
        if name not in LOGGERS:
            raise InvalidParameter("loggers", f"be among {', '.join(LOGGERS)}", name)
        if find_spec(LOGGERS[name][0]) is None:
            raise MissingDependency(f"the logger {name} is not installed", remedy=f"pip install {LOGGERS[name][0]}")
    return listed


class Loggers:
    """All loggers of a run; a context manager that closes them."""

    def __init__(self, names: str, path: Path, settings: Mapping[str, Any], *, step: int) -> None:
        self._loggers = [LOGGERS[name][1](path, settings, step) for name in check_loggers(names)]

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, *error: object) -> None:
        for logger in self._loggers:
            logger.close()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics to every logger."""
        for logger in self._loggers:
            logger.log(metrics, step)


def _tag(name: str) -> str:
    """Return a name that every logger accepts, without blanks and @."""
    return name.replace(" ", "_").replace("@", "_at_")


def _read_id(path: Path, logger: str) -> str | None:
    file = path / "loggers.json"
    return json.loads(file.read_text()).get(logger) if file.exists() else None


def _write_id(path: Path, logger: str, known: str) -> None:
    file = path / "loggers.json"
    ids = json.loads(file.read_text()) if file.exists() else {}
    write_file(file, json.dumps(ids | {logger: known}) + "\n")
