"""Helpers to read and edit ONNX graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval.errors import MissingDependency


def load_onnx(path: Path) -> Any:
    """Return the model of a file."""
    try:
        import onnx
    except ImportError as error:
        raise MissingDependency.of_extra("onnx", "train") from error
    return onnx.load(path)


def constants(model: Any) -> dict[str, Any]:
    """Return the constant tensors of a model, by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}


def after_head(model: Any) -> list[str]:
    """Return the names of the head and of all nodes after it."""
    producers = {output: node for node in model.graph.node for output in node.output}
    raw = producers["certainty"].input[0]
    reached, names = {raw}, [producers[raw].name]
    for node in model.graph.node:  # in topological order
        if reached & set(node.input):
            reached |= set(node.output)
            names.append(node.name)
    return names


def ancestors(model: Any, tensor: str) -> set[str]:
    """Return the names of the nodes that a tensor depends on."""
    producers = {output: node for node in model.graph.node for output in node.output}
    names, pending = set(), [tensor]
    while pending:
        node = producers.get(pending.pop())
        if node is not None and node.name not in names:
            names.add(node.name)
            pending += node.input
    return names


def keep(model: Any, names: set[str]) -> None:
    """Remove all other nodes, and the constants that only they use."""
    nodes = [node for node in model.graph.node if node.name in names]
    inputs = {name for node in nodes for name in node.input}
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in inputs]
    for field, values in (("node", nodes), ("initializer", tensors)):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(values)


def rename_constants(model: Any, prefix: str) -> None:
    """Add a prefix to the names of a model's constant tensors."""
    known = set(constants(model))
    for tensor in model.graph.initializer:
        tensor.name = prefix + tensor.name
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name in known:
                node.input[position] = prefix + name
