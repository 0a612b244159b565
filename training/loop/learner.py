"""What a step changes and a checkpoint holds: model, projector, loss, optimizers, average of the weights.

Symbols: n = photos of the global batch, r = this process's share of them, d = embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.model import EmbeddingModel, freeze_batch_norm

from .distributed import Team
from .gradient_cache import cached_backward
from .optimizer import learning_rate_factor, make_optimizers, parameters_of, set_learning


class LossEmbedder(nn.Module):
    """What the loss sees: the model's embeddings, projected where the settings want it."""

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
    """Takes steps; `begin` each epoch first."""

    def __init__(
        self,
        model: EmbeddingModel,
        loss: nn.Module,
        settings: Settings,
        *,
        team: Team,
        steps: int,
        prepare: Callable[[np.ndarray], Tensor],
    ) -> None:
        self.settings = settings
        self.team = team
        self.steps = steps
        self.step = 0
        self.model = model
        model.to(team.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss = loss.to(team.device)
        self._prepare = prepare
        self._projector = None
        if settings.projector:
            kind = model.head.weight.dtype
            self._projector = nn.Linear(settings.dim, settings.projector, bias=False, dtype=kind)
        self._embedder = LossEmbedder(self.model, self._projector, from_features=settings.precompute > 0)
        self._embedder.to(team.device)
        team.align(self._embedder)
        team.align(self.loss)
        self._network: nn.Module = self._embedder
        self._half = half_precision(settings.precision, team.device)
        self._scaler = torch.amp.GradScaler(team.device.type, enabled=self._half is torch.float16)
        self._optimizers = make_optimizers(self.model, self.loss, settings, projector=self._projector)
        self._rates = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in self._optimizers]
        self._average = AveragedModel(self.model, multi_avg_fn=_moving(settings.ema)) if settings.ema else None

    @property
    def learning_rate(self) -> float:
        """The first group's learning rate of the last step."""
        return float(self._optimizers[0].param_groups[0]["lr"])

    @property
    def kept(self) -> EmbeddingModel:
        """What is validated and kept: the model, or the average of its weights."""
        if self._average is None or not int(self._average.n_averaged):
            return self.model
        averaged: EmbeddingModel = self._average.module  # type: ignore[assignment]
        return averaged

    def begin(self, epoch: int) -> None:
        """Make ready for the steps of an epoch (0 …): what learns, the mode of each layer, the random numbers."""
        settings = self.settings
        torch.manual_seed(settings.seed * 100_003 + epoch + 7_919 * self.team.rank)
        set_learning(self.model, settings, epoch)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)  # what rests in this epoch must not move by an old gradient
        if self.team.size > 1:
            self._rest_unused()
        network: nn.Module = torch.compile(self._embedder) if settings.compile else self._embedder  # type: ignore[assignment]
        self._network = self.team.wrap(network, static_statistics=settings.freeze_batch_norm)
        self._embedder.train()
        if settings.precompute or settings.frozen >= 1:
            self.model.backbone.eval()
        if settings.freeze_batch_norm:
            freeze_batch_norm(self.model)

    def _rest_unused(self) -> None:
        """Switch off what never gets a gradient, such as the pooler of a vision transformer: nobody waits for it."""
        self._embedder.eval()
        size = self.settings.size
        shape = (1, self.model.backbone.width) if self._embedder.from_features else (1, 3, size, size)
        example = torch.zeros(shape, device=self.team.device, dtype=self.model.head.weight.dtype)
        learning = [p for p in self._embedder.parameters() if p.requires_grad]
        if not learning:
            return
        used = torch.autograd.grad(self._embedder(example).sum(), learning, allow_unused=True)
        for parameter, gradient in zip(learning, used, strict=True):
            parameter.requires_grad_(gradient is not None)

    def take(self, inputs: np.ndarray, labels: Tensor) -> tuple[float, Tensor]:
        """Take one step, and return the loss and the raw embeddings (n, d) of all processes.

        Parameters
        ----------
        inputs:
            This process's share of the batch: uint8 pixels (r, h, w, 3), or features (r, c).
        labels:
            Classes (n,) of the whole batch.
        """
        labels = labels.to(self.team.device)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        chunks = self._chunks(inputs, len(labels))
        if len(chunks) > 1:
            value, embeddings = cached_backward(
                self._embed, self._measure, chunks, labels, self._network, team=self.team
            )
        else:
            embeddings = self.team.gather(self._embed(inputs), len(labels))
            value = self._measure(embeddings, labels)
            value.backward()  # type: ignore[no-untyped-call]
        value = value.detach() / self._scaler.get_scale() if self._scaler.is_enabled() else value.detach()
        self._update()
        return float(value), embeddings.detach()

    def _chunks(self, inputs: np.ndarray, batch: int) -> list[np.ndarray]:
        """Return the inputs in parts of at most `chunk`, as many parts in every process."""
        if not self.settings.chunk:
            return [inputs]
        return np.array_split(inputs, math.ceil(math.ceil(batch / self.team.size) / self.settings.chunk))

    def _embed(self, inputs: np.ndarray) -> Tensor:
        with torch.autocast(self.team.device.type, self._half or torch.bfloat16, enabled=self._half is not None):
            embeddings: Tensor = self._network(self._prepare(inputs))
        return embeddings if self._half is None else embeddings.float()

    def _measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, scaled for fp16. Its random numbers depend on (seed, step) alone: equal in all processes."""
        devices = [self.team.device] if self.team.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.settings.seed * 1_000_003 + self.step)
            loss: Tensor = self._scaler.scale(self.loss(embeddings, labels))
        return loss

    def _update(self) -> None:
        factor = learning_rate_factor(self.step, self.steps, self.settings.warmup)
        self.team.average(list(self.loss.parameters()))
        for optimizer, rates in zip(self._optimizers, self._rates, strict=True):
            self._scaler.unscale_(optimizer)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self._embedder.parameters(), self.settings.clip)
        for optimizer in self._optimizers:
            if any(p.grad is not None for p in parameters_of([optimizer])):
                self._scaler.step(optimizer)
        self._scaler.update()
        self.step += 1
        if self._average is not None:
            self._average.update_parameters(self.model)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the facts from which `load` continues."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"loss.{name}": value for name, value in self.loss.state_dict().items()}
        if self._projector is not None:
            tensors["projector.weight"] = self._projector.weight
        for number, optimizer in enumerate(self._optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{number}.{index}.{n}": torch.as_tensor(v) for n, v in state.items()}
        if self._average is not None:
            tensors |= {f"average.{name}": value for name, value in self._average.state_dict().items()}
        scale = self._scaler.get_scale() if self._scaler.is_enabled() else 1.0
        return tensors, {"step": self.step, "scale": scale}

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.model.load_state_dict(under(tensors, "model."))
        self.loss.load_state_dict(under(tensors, "loss."))
        if self._projector is not None:
            self._projector.load_state_dict(under(tensors, "projector."))
        for number, optimizer in enumerate(self._optimizers):
            state: dict[int, dict[str, Any]] = {}
            for name, value in under(tensors, f"optimizer.{number}.").items():
                index, key = name.split(".", 1)
                whole = isinstance(optimizer, torch.optim.SparseAdam) and key == "step"
                state.setdefault(int(index), {})[key] = int(value) if whole else value
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        if self._average is not None:
            self._average.load_state_dict(under(tensors, "average."))
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(self._scaler.state_dict() | {"scale": facts["scale"]})
        self.step = facts["step"]


def half_precision(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit type that the backbone runs in, None for fp32: as asked, or bfloat16 on a GPU that has it."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else None
    if precision == "fp16" and device.type != "cuda":
        raise InvalidParameter("precision", "be fp32 or bf16 without a GPU", precision)
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return what is named `prefix`…, without it."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _moving(decay: float) -> Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | int], None]:
    """Return a moving average that forgets the untrained weights: its decay rises to `decay` as steps go by."""

    def average(averaged: Sequence[Tensor], current: Sequence[Tensor], count: Tensor | int) -> None:
        weight = min(decay, (1 + int(count)) / (10 + int(count)))
        with torch.no_grad():
            torch._foreach_lerp_(list(averaged), list(current), 1 - weight)

    return average
