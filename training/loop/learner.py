"""Training steps: forward, backward and update of model, projector, loss and averaged weights; their checkpoint state.

Symbols: n = photos of the global batch, r = this process's share of them, d = embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.model import EmbeddingModel, freeze_batch_norm

from .distributed import ProcessGroup
from .gradient_cache import backward_with_gradient_cache
from .optimizer import learning_rate_factor, make_optimizer, set_learning


class LossEmbedder(nn.Module):
    """The network in front of the loss: the model and, if the settings have one, the projector."""

    def __init__(self, model: EmbeddingModel, projector: nn.Module | None, *, from_features: bool) -> None:
        super().__init__()
        self.model = model
        self.projector = projector
        self.from_features = from_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return raw embeddings (r, d) of pixels (r, 3, h, w), or of pooled features (r, c)."""
        embeddings: Tensor = self.model.head(inputs) if self.from_features else self.model(inputs)
        return embeddings if self.projector is None else self.projector(embeddings)


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
        prepare: Callable[[np.ndarray], Tensor],
    ) -> None:
        self.settings = settings
        self.process_group = process_group
        self.steps = steps
        self.step = 0
        self.model = model
        model.to(process_group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss = loss.to(process_group.device)
        self._prepare = prepare
        self._projector = None
        if settings.projector:
            kind = model.head.weight.dtype
            self._projector = nn.Linear(settings.embedding_size, settings.projector, bias=False, dtype=kind)
        self._embedder = LossEmbedder(self.model, self._projector, from_features=settings.precompute > 0)
        self._embedder.to(process_group.device)
        process_group.sync(self._embedder)
        process_group.sync(self.loss)
        self._network: nn.Module = self._embedder
        self._half = half_precision(settings.precision, process_group.device)
        self._scaler = torch.amp.GradScaler(process_group.device.type, enabled=self._half is torch.float16)
        self._optimizer = make_optimizer(self.model, self.loss, settings, projector=self._projector)
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first parameter group in the last step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def begin(self, epoch: int) -> None:
        """Prepare an epoch (0 …): set trainable parameters, the mode of each layer and the random seed."""
        settings = self.settings
        torch.manual_seed(settings.seed * 100_003 + epoch + 7_919 * self.process_group.rank)
        set_learning(self.model, settings)
        if self.process_group.size > 1:
            self._freeze_unused()
        self._network = self.process_group.wrap(self._embedder, static_statistics=settings.freeze_batch_norm)
        self._embedder.train()
        if settings.precompute or not settings.learning_rate:
            self.model.backbone.eval()
        if settings.freeze_batch_norm:
            freeze_batch_norm(self.model)

    def _freeze_unused(self) -> None:
        """Freeze parameters that never get a gradient, such as the pooler of a vision transformer.

        DistributedDataParallel would wait for their gradients.
        """
        self._embedder.eval()
        size = self.settings.input_size
        shape = (1, self.model.backbone.width) if self._embedder.from_features else (1, 3, size, size)
        example = torch.zeros(shape, device=self.process_group.device, dtype=self.model.head.weight.dtype)
        trainable = [p for p in self._embedder.parameters() if p.requires_grad]
        if not trainable:
            return
        used = torch.autograd.grad(self._embedder(example).sum(), trainable, allow_unused=True)
        for parameter, gradient in zip(trainable, used, strict=True):
            parameter.requires_grad_(gradient is not None)

    def take(self, inputs: np.ndarray, labels: Tensor) -> tuple[float, Tensor]:
        """Take one step; return the loss and the raw embeddings (n, d) of all processes.

        Parameters
        ----------
        inputs:
            This process's share of the batch: uint8 pixels (r, h, w, 3), or features (r, c).
        labels:
            Classes (n,) of the whole batch.
        """
        labels = labels.to(self.process_group.device)
        self._optimizer.zero_grad(set_to_none=True)
        micro_batches = self._micro_batches(inputs, len(labels))
        if len(micro_batches) > 1:
            value, embeddings = backward_with_gradient_cache(
                self._embed, self._compute_loss, micro_batches, labels, self._network, process_group=self.process_group
            )
        else:
            embeddings = self.process_group.gather(self._embed(inputs), len(labels))
            value = self._compute_loss(embeddings, labels)
            value.backward()  # type: ignore[no-untyped-call]
        value = value.detach() / self._scaler.get_scale() if self._scaler.is_enabled() else value.detach()
        self._update()
        return float(value), embeddings.detach()

    def _micro_batches(self, inputs: np.ndarray, batch: int) -> list[np.ndarray]:
        """Return the inputs in parts of at most `micro_batch_size`, the same number in every process."""
        if not self.settings.micro_batch_size:
            return [inputs]
        return np.array_split(
            inputs, math.ceil(math.ceil(batch / self.process_group.size) / self.settings.micro_batch_size)
        )

    def _embed(self, inputs: np.ndarray) -> Tensor:
        with torch.autocast(
            self.process_group.device.type, self._half or torch.bfloat16, enabled=self._half is not None
        ):
            embeddings: Tensor = self._network(self._prepare(inputs))
        return embeddings if self._half is None else embeddings.float()

    def _compute_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, scaled for fp16. It is seeded by (seed, step), so that all processes compute the same."""
        devices = [self.process_group.device] if self.process_group.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.settings.seed * 1_000_003 + self.step)
            loss: Tensor = self._scaler.scale(self.loss(embeddings, labels))
        return loss

    def _update(self) -> None:
        self.process_group.average_gradients(list(self.loss.parameters()))
        factor = learning_rate_factor(self.step, self.steps)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.step += 1

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the plain values that `load` continues from."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"loss.{name}": value for name, value in self.loss.state_dict().items()}
        if self._projector is not None:
            tensors["projector.weight"] = self._projector.weight
        for index, state in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        scale = self._scaler.get_scale() if self._scaler.is_enabled() else 1.0
        return tensors, {"step": self.step, "scale": scale}

    def begin_with(self, tensors: Mapping[str, Tensor]) -> None:
        """Start from the loss of another run, and from its projector if there is one."""
        self.loss.load_state_dict(under(tensors, "loss."))
        if self._projector is not None and "projector.weight" in tensors:
            self._projector.load_state_dict(under(tensors, "projector."))

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(under(tensors, "model."))
        self.loss.load_state_dict(under(tensors, "loss."))
        if self._projector is not None:
            self._projector.load_state_dict(under(tensors, "projector."))
        state: dict[int, dict[str, Any]] = {}
        for name, value in under(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(self._scaler.state_dict() | {"scale": facts["scale"]})
        self.step = facts["step"]


def half_precision(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit type that the backbone runs in, or None for fp32; "auto" is bfloat16 on GPUs that have it."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else None
    if precision == "fp16" and device.type != "cuda":
        raise InvalidParameter("precision", "be fp32 or bf16 without a GPU", precision)
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, with the prefix removed."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
