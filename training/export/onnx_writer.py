"""Export of a trained model to one ONNX file: pixels (n, 3, size, size) to `embedding` and `certainty`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from retrieval.files import naming
from training.evaluation.distance_selection import Whitening
from training.model import EmbeddingModel, ExportModel, PretrainedModel

OPSET = 18


def write_onnx(
    model: EmbeddingModel | PretrainedModel, path: Path, *, size: int, whitening: Whitening | None = None
) -> None:
    """Write a model in fp32, with whitening if there is any."""
    parts = None
    if whitening is not None:
        parts = torch.from_numpy(whitening.mean).float(), torch.from_numpy(whitening.matrix).float()
    wrapped = ExportModel(model.cpu().float(), whitening=parts).eval()
    example = torch.zeros(2, 3, size, size)
    with naming(path), quiet("torch.onnx"):
        torch.onnx.export(
            wrapped,
            (example,),
            str(path),
            input_names=["pixels"],
            output_names=["embedding", "certainty"],
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes={"pixels": {0: torch.export.Dim("n", min=1, max=4096)}},
            external_data=False,
            verbose=False,
        )


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Silence warnings and a logger below errors; exporters print many deprecation warnings."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
