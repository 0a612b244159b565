"""The training loop: steps, validation, checkpoints, and resuming as if nothing had happened."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from retrieval.catalogue import Photo, read_catalogue
from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing

from .cached import cached_backward
from .data import Augmentation, PhotoReader, training_batches
from .embedding import embed_photos, to_device
from .evaluation import item_labels, make_scene, open_set_figures, rank_figures, score_scene
from .losses.base import Loss
from .losses.registry import LOSSES, Regularized, make_loss
from .model import EmbeddingModel, backbone_preprocessing, freeze_batch_norm, load_backbone
from .run import BEST, LAST, Run, choose_device
from .sampler import ItemSampler
from .settings import Settings
from .splits import Protocol, Splits, make_protocol, make_splits, side


def train(settings: Settings, path: Path, *, resume: bool = False) -> Run:
    """Train, or continue, a run at `path`, and return it.

    The result depends on the settings alone: an interrupted and resumed run ends with the same weights as an
    uninterrupted one on the same machine, because every random choice is drawn from (seed, epoch).
    """
    if resume:
        return Trainer(Run.open(path)).run_epochs()
    photos = read_catalogue(Path(settings.catalogue))
    splits = make_splits(photos, seed=settings.split_seed)
    protocol = make_protocol(photos, gallery_source=settings.gallery_source, query_source=settings.query_source)
    make_scene("validation", photos, splits.validation, protocol)  # refuse before anything is written
    build_loss(settings, classes=len(splits.fit))
    check_batches(settings)
    model, config = initial_model(settings)
    preprocessing = backbone_preprocessing(settings.backbone, size=settings.size, view=settings.view)
    run = Run.create(
        path,
        settings=settings.to_dict(),
        splits={"parts": splits.to_dict(), "protocol": vars(protocol)},
        backbone={"config": config, "preprocessing": preprocessing.to_dict()},
    )
    return Trainer(run, photos=photos, model=model).run_epochs()


def initial_model(settings: Settings) -> tuple[EmbeddingModel, dict[str, Any] | None]:
    """Return the model before its first step, pretrained where the backbone is, and the backbone's configuration."""
    torch.manual_seed(settings.seed)
    backbone, config = load_backbone(settings.backbone)
    return EmbeddingModel(backbone, dim=settings.dim, pooling=settings.pooling), config


def build_loss(settings: Settings, *, classes: int) -> nn.Module:
    """Return the base loss of the settings, with its regularizer on top where there is one."""
    base = make_loss(settings.loss, classes=classes, dim=settings.dim, arguments=dict(settings.loss_arguments))
    if not settings.regularizer:
        return base
    arguments = dict(settings.regularizer_arguments)
    extra = make_loss(settings.regularizer, classes=classes, dim=settings.dim, arguments=arguments)
    return Regularized(base, extra, settings.regularizer_weight)


def check_batches(settings: Settings) -> None:
    """Refuse batches in which a loss has nothing to compare, before anything is written."""
    for name in filter(None, (settings.loss, settings.regularizer)):
        if LOSSES[name].needs_balanced_batches and settings.photos_per_item < 2:
            raise InvalidParameter(
                "photos_per_item",
                f"be at least 2 for {name}, which compares photos of one item within a batch",
                settings.photos_per_item,
                remedy="4 is usual; a loss with proxies does with 1 (`retrieval losses`)",
            )


class Trainer:
    """One run in the making; `run_epochs` does what is left to do."""

    def __init__(self, run: Run, *, photos: Sequence[Photo] | None = None, model: EmbeddingModel | None = None) -> None:
        self.run = run
        self.settings = settings = run.settings
        self.splits: Splits = run.splits
        self.protocol: Protocol = run.protocol
        photos = run.photos() if photos is None else photos
        fit = protocol_photos(photos, self.splits.fit, self.protocol)
        self.labels = torch.from_numpy(item_labels(fit))
        self.validation = [p for p in photos if p.item_id in set(self.splits.validation)]
        self.preprocessing: Preprocessing = run.preprocessing
        self.reader = PhotoReader(fit, self.preprocessing)
        self.validation_reader = PhotoReader(self.validation, self.preprocessing, cache_bytes=2**30)
        self.augmentation = Augmentation(settings)
        self.sampler = ItemSampler(
            self.labels.tolist(),
            items_per_batch=settings.items_per_batch,
            photos_per_item=settings.photos_per_item,
            seed=settings.seed,
        )
        self.device = choose_device(settings.device)
        self.half = use_bf16(settings.precision, self.device)
        torch.manual_seed(settings.seed)
        self.loss = build_loss(settings, classes=len(self.splits.fit)).to(self.device)
        if model is None:
            model = run.new_model() if run.has(LAST) else initial_model(settings)[0]
        if settings.initial_norm and not run.has(LAST):
            self._scale_head(model, settings.initial_norm)
        self.model = model
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = make_optimizer(self.model, self.loss, settings)
        self.steps = self.sampler.batches * settings.epochs
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.step = 0

    def run_epochs(self) -> Run:
        """Do the epochs that are left; each ends with validation and a checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        progress = self._restore()
        with SummaryWriter(
            str(self.run.path / "tensorboard"), purge_step=progress["epoch"] * self.sampler.batches
        ) as board:
            for epoch in range(progress["epoch"], self.settings.epochs):
                figures = self._epoch(epoch)
                for name, value in figures.items():
                    board.add_scalar(name.replace(" ", "_"), value, (epoch + 1) * self.sampler.batches)
                progress["epoch"] = epoch + 1
                rank = (figures["validation FNIR"], -figures["validation R@1"])
                if progress["best"] is None or rank < tuple(progress["best"]["rank"]):
                    progress["best"] = {"epoch": epoch + 1, "rank": rank, "figures": figures}
                    self.run.save(BEST, self.model.state_dict())
                self._checkpoint(progress)
                self.run.record({"epoch": epoch + 1, **figures})
        return self.run

    def _epoch(self, epoch: int) -> dict[str, float]:
        settings = self.settings
        torch.manual_seed(settings.seed * 100_003 + epoch)
        self._training_mode(self.model)
        batches = training_batches(
            self.reader, self.augmentation, self.sampler.epoch(epoch), seed=(settings.seed, epoch)
        )
        total, started = 0.0, time.perf_counter()
        bar = tqdm(batches, total=self.sampler.batches, desc=f"epoch {epoch + 1}/{settings.epochs}", unit="batch")
        for positions, pixels in bar:
            loss = self._step(pixels, self.labels[positions])
            total += loss
            bar.set_postfix(loss=f"{loss:.4f}")
        seconds = time.perf_counter() - started
        figures = self._validate()
        tqdm.write(
            f"epoch {epoch + 1}/{settings.epochs}: loss {total / self.sampler.batches:.4f}, validation R@1 "
            f"{figures['R@1']:.3f}, FNIR at FPIR {settings.target_fpir:g}: {figures['FNIR']:.3f}, "
            f"{seconds:.0f} s"
        )
        return {
            "loss": total / self.sampler.batches,
            "seconds": seconds,
            "learning rate": self.optimizer.param_groups[0]["lr"],
            **{f"validation {name}": value for name, value in figures.items()},
        }

    def _training_mode(self, model: EmbeddingModel) -> None:
        model.train()
        if self.settings.freeze_batch_norm:
            freeze_batch_norm(model)

    def _scale_head(self, model: EmbeddingModel, norm: float) -> None:
        """Scale the embedding layer so that training photos have this mean norm: a probabilistic loss reads it."""
        statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._training_mode(model)
        with torch.no_grad():
            some = self.reader.pixels(range(min(64, len(self.labels))))
            mean = model(to_device(some, self.preprocessing, torch.device("cpu"))).norm(dim=1).mean()
            for name, buffer in model.named_buffers():
                buffer.copy_(statistics[name])
            for parameter in model.head.parameters():
                parameter.mul_(norm / mean)

    def _embed(self, pixels: np.ndarray) -> Tensor:
        inputs = to_device(pixels, self.preprocessing, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            embeddings: Tensor = self.model(inputs)
        return embeddings.float()

    def _step(self, pixels: np.ndarray, labels: Tensor) -> float:
        labels = labels.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        chunk = self.settings.chunk
        if 0 < chunk < len(pixels):
            chunks = [pixels[start : start + chunk] for start in range(0, len(pixels), chunk)]
            loss = cached_backward(self._embed, self.loss, chunks, labels, self.model)
        else:
            loss = self.loss(self._embed(pixels), labels)
            loss.backward()
        factor = learning_rate_factor(self.step, self.steps, self.settings.warmup)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    def _validate(self) -> dict[str, float]:
        """Return R@1 and the open-set figures on validation items, which choose the checkpoint."""
        vectors = embed_photos(self.model, self.validation_reader, len(self.validation), self.preprocessing)
        scene = make_scene("validation", self.validation, self.splits.validation, self.protocol)
        labels = item_labels(self.validation)
        scores = score_scene(scene, vectors, labels)
        ranks = rank_figures(scene, vectors, labels)
        return ranks | open_set_figures(scores, self.settings.target_fpir)

    def _checkpoint(self, progress: dict[str, Any]) -> None:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"loss.{name}": value for name, value in self.loss.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        self.run.save(LAST, tensors, {**progress, "step": self.step})
        self.run.write_progress(progress)

    def _restore(self) -> dict[str, Any]:
        """Continue from the last checkpoint; return the progress, which is fresh where there is none."""
        if not self.run.has(LAST):
            return {"epoch": 0, "best": None}
        tensors, facts = self.run.load(LAST)
        self.model.load_state_dict(_under(tensors, "model."))
        self.loss.load_state_dict(_under(tensors, "loss."))
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _under(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        self.step = facts["step"]
        saved = self.optimizer.state_dict()
        self.optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})
        self.run.forget_after(facts["epoch"])
        return {"epoch": facts["epoch"], "best": facts["best"]}


def protocol_photos(photos: Sequence[Photo], items: Sequence[str], protocol: Protocol) -> list[Photo]:
    """Return the photos of some items whose source takes part in the protocol: what the loss sees of its items."""
    wanted = set(items)
    return [p for p in photos if p.item_id in wanted and side(p) in protocol.sources]


def use_bf16(precision: str, device: torch.device) -> bool:
    """Return whether the backbone runs in bfloat16: where asked, or by itself on a GPU that has it."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bf16"


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Return the share of the full learning rate at a step: a linear rise, then half a cosine to 0."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def make_optimizer(model: EmbeddingModel, loss: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """Return AdamW with a rate each for backbone, head and the loss's own parameters.

    Matrices of the model are decayed; vectors and whatever the loss learns are not.
    """
    head = [*model.head.parameters()] + ([model.power] if model.power is not None else [])
    groups = []
    for parameters, rate in (
        (model.backbone.parameters(), settings.learning_rate),
        (head, settings.head_learning_rate),
    ):
        kept = list(parameters)
        groups += [
            {"params": [p for p in kept if p.dim() > 1], "lr": rate, "weight_decay": settings.weight_decay},
            {"params": [p for p in kept if p.dim() <= 1], "lr": rate, "weight_decay": 0.0},
        ]
    for factor, learned in sorted(learned_by(loss).items()):
        groups.append({"params": learned, "lr": factor * settings.proxy_learning_rate, "weight_decay": 0.0})
    return torch.optim.AdamW([group for group in groups if group["params"]])


def learned_by(loss: nn.Module) -> dict[float, list[nn.Parameter]]:
    """Return what a loss and its parts learn, by the factor on the proxies' learning rate (`Loss.rates`)."""
    groups: dict[float, list[nn.Parameter]] = {}
    for module in loss.modules():
        rates = module.rates if isinstance(module, Loss) else {}
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                groups.setdefault(rates.get(name, 1.0), []).append(parameter)
    return groups


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
