"""Large batches on small memory: the gradient of a loss over a batch that the network sees in chunks.

Symbols: n = batch size, d = embedding size. Gao et al., "Scaling deep contrastive learning batch size under memory
limited setup" (2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from .distributed import Team

Chunk = TypeVar("Chunk")


def cached_backward(
    embed: Callable[[Chunk], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    chunks: Sequence[Chunk],
    labels: Tensor,
    model: nn.Module,
    *,
    team: Team | None = None,
) -> tuple[Tensor, Tensor]:
    """Add the gradients of a batch to model and loss; return the scalar loss and the embeddings (n, d), detached.

    First all chunks are embedded without a graph, the loss of the whole batch gives the gradient of every
    embedding, then each chunk is embedded again with a graph that carries its share back. The network runs twice
    forwards; its activations are those of one chunk.

    What depends on the batch inside the network depends on the chunk instead. Batch-norm in training mode
    normalises by each chunk's statistics, as it does on several devices, and its running statistics move once a
    chunk; frozen batch-norm is untouched. Dropout draws its mask a chunk at a time, the same in both passes.

    Parameters
    ----------
    embed:
        Raw embeddings (rows, d) of a chunk; called twice a chunk.
    loss:
        Of raw embeddings (n, d) and labels (n,), the rows in the order of the chunks.
    chunks:
        Inputs, each of any type that `embed` takes; of several processes each has the chunks of its own share.
    labels:
        Classes (n,) of all rows of all processes.
    model:
        What `embed` runs: its buffers are put back after the first pass. Its gradients are averaged over the
        processes with the last chunk.
    team:
        The processes that share the batch; None is one.
    """
    device = labels.device
    states, parts = [], []
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        for chunk in chunks:
            states.append(_random_state(device))
            parts.append(embed(chunk))
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    mine = torch.cat(parts).requires_grad_()
    embeddings = team.gather(mine, len(labels)) if team is not None else mine
    value = loss(embeddings, labels)
    value.backward()  # type: ignore[no-untyped-call]
    after = _random_state(device)
    if mine.grad is None or not any(p.requires_grad for p in model.parameters()):
        return value.detach(), embeddings.detach()  # the loss does not depend on what could learn
    alone = getattr(model, "no_sync", nullcontext)
    start = 0
    for number, (chunk, part, state) in enumerate(zip(chunks, parts, states, strict=True)):
        _set_random_state(state, device)
        with alone() if number + 1 < len(chunks) else nullcontext():
            torch.autograd.backward(embed(chunk), mine.grad[start : start + len(part)])
        start += len(part)
    _set_random_state(after, device)
    return value.detach(), embeddings.detach()


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
