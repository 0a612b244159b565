"""Export of a trained model to one ONNX file: pixels (n, 3, size, size) to `embedding` and `certainty`.

A text tower maps `input_ids` (n, t) to the same outputs.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from retrieval.encoders.energy import add_energy
from retrieval.files import naming
from training.model import ExportModel, FoldModels

OPSET = 18
INPUTS, OUTPUTS = ("pixels",), ("embedding", "certainty")


def write_onnx(model: nn.Module, path: Path, *, size: int) -> None:
    """Write a model in fp32, with the energy of photos as an output if it pools a feature map (`add_energy`)."""
    _write(model, path, INPUTS[0], torch.zeros(2, 3, size, size), {0: torch.export.Dim("n", min=1, max=4096)})
    if not isinstance(model, FoldModels):
        program = onnx.load(path)
        add_energy(program)
        onnx.save(program, path)


def write_text_onnx(model: nn.Module, path: Path, *, length: int) -> None:
    """Write a text tower in fp32, for one text of up to `length` tokens."""
    example = torch.zeros(1, length, dtype=torch.long)
    _write(model, path, "input_ids", example, {1: torch.export.Dim("t", min=2, max=length)})


def _write(model: nn.Module, path: Path, name: str, example: torch.Tensor, shape: dict[int, Any]) -> None:
    """Write a model of one input, whose dimensions in `shape` are free."""
    wrapped = ExportModel(model.cpu().float()).eval()
    with naming(path), quiet("torch.onnx"), _plain_attention(wrapped):
        program: Any = torch.onnx.export(
            wrapped,
            (example,),
            input_names=[name],
            output_names=[f"_{name}" for name in OUTPUTS],
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=(shape,),
            external_data=False,
            verbose=False,
        )
        _name_outputs(program)
        _strip(program)
        program.save(str(path), external_data=False)


@contextmanager
def _plain_attention(model: nn.Module) -> Iterator[None]:
    """Use attention by matrix products in `transformers`; the exporter fails on fused attention in some families."""
    networks: list[Any] = [module for module in model.modules() if hasattr(module, "set_attn_implementation")]
    used = [(network, network.config._attn_implementation) for network in networks]
    try:
        for module, _ in used:
            module.set_attn_implementation("eager")
        yield
    finally:
        for module, implementation in used:
            module.set_attn_implementation(implementation)


def _name_outputs(program: Any) -> None:
    """Name the outputs, and rename inner values with these names (such as an `embedding` of positions)."""
    graph = program.model.graph
    values = [value for node in graph for value in node.outputs]
    for value in [*values, *graph.initializers.values()]:
        if value.name in OUTPUTS:
            value.name = f"{value.name}_within"
    for value, name in zip(graph.outputs, OUTPUTS, strict=True):
        value.name = name


def _strip(program: Any) -> None:
    """Remove what the exporter tells of itself: lines of our code, paths of this machine and the version of torch.

    The same model is then the same file, wherever and whenever it is exported.
    """
    model = program.model
    model.producer_version = ""
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for part in (model, model.graph, *model.graph, *values, *(value for node in model.graph for value in node.outputs)):
        part.metadata_props.clear()
        part.doc_string = None


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
