"""Reading an ONNX graph and cutting it up."""

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
    """Return the tensors that a model holds, by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}


def after_head(model: Any) -> list[str]:
    """Return the names of the nodes that make `embedding` and `certainty` of the head's output, and of the head."""
    made_by = {output: node for node in model.graph.node for output in node.output}
    raw = made_by["certainty"].input[0]
    reached, names = {raw}, [made_by[raw].name]
    for node in model.graph.node:  # in the order of their making
        if reached & set(node.input):
            reached |= set(node.output)
            names.append(node.name)
    return names


def ancestors(model: Any, tensor: str) -> set[str]:
    """Return the names of the nodes that a tensor is made by."""
    made_by = {output: node for node in model.graph.node for output in node.output}
    found, asked = set(), [tensor]
    while asked:
        node = made_by.get(asked.pop())
        if node is not None and node.name not in found:
            found.add(node.name)
            asked += node.input
    return found


def keep(model: Any, names: set[str]) -> None:
    """Drop all nodes but these, and the constants that none of them takes."""
    nodes = [node for node in model.graph.node if node.name in names]
    taken = {name for node in nodes for name in node.input}
    held = [tensor for tensor in model.graph.initializer if tensor.name in taken]
    for field, values in (("node", nodes), ("initializer", held)):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(values)


def rename_constants(model: Any, prefix: str) -> None:
    """Put a prefix before the name of every tensor that a model holds."""
    known = set(constants(model))
    for tensor in model.graph.initializer:
        tensor.name = prefix + tensor.name
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in known:
                node.input[place] = prefix + name
