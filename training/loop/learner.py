"""Training steps: forward, backward and update of model, projector and loss; their checkpoint state.

A batch that is too large for memory is embedded in micro-batches (gradient caching, after Gao et al., "Scaling deep
contrastive learning batch size under memory limited setup", 2021).
Symbols: n = photos of the global batch, r = this process's share of them, d = embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from retrieval.errors import InvalidParameter, TrainingDiverged
from training.config import Settings
from training.model import EmbeddingModel, freeze_batch_norm

from .distributed import ProcessGroup
from .optimizer import learning_rate_factor, make_optimizer, set_learning

Prepare = Callable[[np.ndarray], Tensor]  # the inputs of the model on the device
MicroBatch = TypeVar("MicroBatch")


class LossEmbedder(nn.Module):
    """The network in front of the loss: the model and the projector, if the settings have one."""

    def __init__(self, model: EmbeddingModel, projector: nn.Module, prepare: Prepare, *, from_features: bool) -> None:
        super().__init__()
        self.model = model
        self.projector = projector
        self._prepare = prepare
        self._from_features = from_features

    def forward(self, micro_batches: Sequence[np.ndarray]) -> Tensor:
        """Return raw embeddings (r, d) of uint8 pixels (r, h, w, 3), or of pooled features (r, c), in parts."""
        return embed_in_micro_batches(self._embed, micro_batches, self)

    def _embed(self, inputs: np.ndarray) -> Tensor:
        prepared = self._prepare(inputs)
        embeddings: Tensor = self.projector(self.model.head(prepared) if self._from_features else self.model(prepared))
        return embeddings


class Learner:
    """Takes training steps. Call `begin` before each epoch."""

    def __init__(
        self,
        model: EmbeddingModel,
        loss: nn.Module,
        settings: Settings,
        *,
        process_group: ProcessGroup,
        steps: int,
        prepare: Prepare,
    ) -> None:
        self.settings = settings
        self.process_group = process_group
        self.steps = steps
        self.step = 0
        self.model = model
        model.to(process_group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss = loss
        projector: nn.Module = nn.Identity()
        if settings.projector:
            kind = model.head.weight.dtype
            projector = nn.Linear(settings.embedding_size, settings.projector, bias=False, dtype=kind)
        self._learned = nn.ModuleDict({"model": model, "projector": projector, "loss": loss}).to(process_group.device)
        set_learning(model, settings)
        embedder = LossEmbedder(model, projector, prepare, from_features=settings.precompute > 0)
        if process_group.size > 1:
            self._freeze_unused(embedder)
        self._network = process_group.wrap(embedder, static_statistics=settings.frozen_statistics)
        self._half = half_precision(settings.precision, process_group.device)
        self._scaler = torch.amp.GradScaler(process_group.device.type, enabled=self._half is torch.float16)
        self._optimizer = make_optimizer(model, loss, settings, projector=projector)
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first parameter group in the last step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def begin(self, epoch: int) -> None:
        """Prepare an epoch (0 …): set the mode of each layer and the random seed."""
        settings = self.settings
        torch.manual_seed(settings.seed * 100_003 + epoch + 7_919 * self.process_group.rank)
        self._network.train()
        if settings.precompute or not settings.learning_rate:
            self.model.backbone.eval()
        if settings.frozen_statistics:
            freeze_batch_norm(self.model)

    def _freeze_unused(self, embedder: LossEmbedder) -> None:
        """Freeze parameters that never get a gradient, such as the pooler of a vision transformer.

        DistributedDataParallel would wait for their gradients.
        """
        embedder.eval()
        size = self.settings.input_size
        from_features = self.settings.precompute > 0
        example = np.zeros((1, self.model.backbone.width) if from_features else (1, size, size, 3))
        example = example.astype(np.float32 if from_features else np.uint8)
        trainable = [p for p in embedder.parameters() if p.requires_grad]
        used = torch.autograd.grad(embedder([example]).sum(), trainable, allow_unused=True)
        for parameter, gradient in zip(trainable, used, strict=True):
            parameter.requires_grad_(gradient is not None)

    def take(self, inputs: np.ndarray, labels: Tensor) -> float:
        """Take one step; return the loss. Raises TrainingDiverged if it is not finite.

        Parameters
        ----------
        inputs:
            This process's share of the batch: uint8 pixels (r, h, w, 3), or features (r, c).
        labels:
            Classes (n,) of the whole batch.
        """
        labels = labels.to(self.process_group.device)
        self._optimizer.zero_grad(set_to_none=True)
        kind = self.process_group.device.type
        with torch.autocast(kind, self._half or torch.bfloat16, enabled=self._half is not None):
            share: Tensor = self._network(self._micro_batches(inputs, len(labels)))
        embeddings = self.process_group.gather(share if self._half is None else share.float(), len(labels))
        loss = self._compute_loss(embeddings, labels)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._update()
        value = float(loss.detach())  # not scaled: the scaler skips a step whose scaled loss or gradient overflows
        if not math.isfinite(value):
            raise TrainingDiverged(f"the loss of step {self.step} is {value}")
        return value

    def check_weights(self) -> None:
        """Raise TrainingDiverged if a weight of model, projector or loss is not finite."""
        for name, weight in self._learned.state_dict().items():
            if not bool(weight.isfinite().all()):
                raise TrainingDiverged(f"{name} is not finite after step {self.step}")

    def _micro_batches(self, inputs: np.ndarray, batch: int) -> list[np.ndarray]:
        """Return the inputs in parts of at most `micro_batch_size`, the same number in every process."""
        most = math.ceil(batch / self.process_group.size)
        return np.array_split(inputs, math.ceil(most / (self.settings.micro_batch_size or most)))

    def _compute_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss. It is seeded by (seed, step), so that all processes compute the same."""
        devices = [self.process_group.device] if self.process_group.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.settings.seed * 1_000_003 + self.step)
            loss: Tensor = self.loss(embeddings, labels)
        return loss

    def _update(self) -> None:
        self.process_group.average_gradients(self.loss.parameters())
        factor = learning_rate_factor(self.step, self.steps)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.step += 1

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the plain values that `load` continues from."""
        tensors: dict[str, Tensor] = dict(self._learned.state_dict())
        for index, state in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        return tensors, {"step": self.step, "scale": self._scaler.get_scale()}

    def begin_with(self, tensors: Mapping[str, Tensor]) -> None:
        """Start from the weights of another run; those that it lacks keep their start."""
        self._learned.load_state_dict(tensors, strict=False)

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        state: dict[int, dict[str, Any]] = {}
        learned = dict(tensors)
        for name in [name for name in tensors if name.startswith("optimizer.")]:
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = learned.pop(name)
        self._learned.load_state_dict(learned)
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})
        self._scaler.load_state_dict(self._scaler.state_dict() | {"scale": facts["scale"]})
        self.step = facts["step"]


def half_precision(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit type that the backbone runs in, or None for fp32; "auto" is bfloat16 on GPUs that have it."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else None
    if precision == "fp16" and device.type != "cuda":
        raise InvalidParameter("precision", "be fp32 or bf16 without a GPU", precision)
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)


def embed_in_micro_batches(
    embed: Callable[[MicroBatch], Tensor], micro_batches: Sequence[MicroBatch], model: nn.Module
) -> Tensor:
    """Return the embeddings (n, d) of a batch, whose gradient holds the activations of one micro-batch at a time.

    The backward pass embeds every micro-batch once more. Layers that depend on the batch see the micro-batch instead:
    batch-norm in training mode normalises with its statistics, as it does on several devices, and updates its running
    statistics once per micro-batch. Dropout draws one mask per micro-batch, the same in both passes.

    Parameters
    ----------
    embed:
        Returns raw embeddings (rows, d) of a micro-batch.
    model:
        The network that `embed` runs.
    """
    if len(micro_batches) == 1:
        return embed(micro_batches[0])

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), buffers_kept(model)

    parts = [checkpoint(embed, part, use_reentrant=False, context_fn=contexts) for part in micro_batches]
    return torch.cat(parts)


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Restore the buffers of a network, such as the statistics of batch-norm, at the end of the block."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)
