"""Warm start: a run that begins with the weights of an earlier one, and trains on its items and new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import PARTS, EvaluationProtocol, Splits, make_splits, photos_in_protocol
from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing
from training.backbones import load_backbone, published_preprocessing
from training.config import SMALL, Settings
from training.data.continued import is_fitted, merge_catalogues, photo_contents
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_photos
from training.evaluation.evaluate import item_labels
from training.model import EmbeddingModel, PretrainedModel, choose_device

from .head_start import first_of_each
from .recipe import build_loss, initial_model
from .run import LAST, START, Run, held_out_in

NETWORK = ("backbone", "size", "crop_ratio", "dim", "pooling", "projector")  # settings that must not change
DIRECTIONS = ("proxies", "fields")  # names of parameters (C, d) that embeddings are compared with
PHOTOS_EACH = 16  # photos of an item; their mean embedding is the start of its proxy


@dataclass(frozen=True)
class Continuation:
    """A run to continue, with the photos, protocol and splits of the new one."""

    start: Run
    catalogues: Sequence[str]
    photos: list[Photo]
    protocol: EvaluationProtocol
    splits: Splits
    seen: Collection[str] = ()  # ids of the photos that the earlier run was trained on

    @classmethod
    def of(cls, start: Run, settings: Settings, *, splits: Splits | None = None) -> Continuation:
        """Read the photos and divide the items. What the earlier run was fitted on is never held out.

        An item counts as fitted if its id or its group does, or, unless the earlier run held it out, a photo of it by
        its content: items may have other names now.

        Raises InvalidParameter if the settings describe another network than that of the run, RunError if the run has
        no checkpoint, DataError if the new photos cannot be used.
        """
        check_network(settings, start.settings)
        earlier_catalogues = start.warm_start.get("catalogues", [start.settings.catalogue])
        catalogues = list(dict.fromkeys([*earlier_catalogues, settings.catalogue]))
        photos = merge_catalogues(catalogues, start.protocol)
        earlier, contents = start.fitted_on(), photo_contents(photos)
        held_out = {*start.splits.validation, *start.splits.calibration, *start.splits.test}
        fitted = {
            photo.item_id
            for photo in photos
            if is_fitted(photo, earlier, None if photo.item_id in held_out else contents[photo.photo_id])
        }
        parts = splits or make_splits(photos, fitted=fitted)
        seen = {photo_id for photo_id, content in contents.items() if earlier.contains("", content)}
        seen.difference_update(held_out_in(start, photos))
        return cls(start, catalogues, photos, start.protocol, parts, seen)

    def document(self) -> dict[str, Any]:
        """Return the facts about the earlier run that the new run records."""
        known = {item for part in PARTS for item in getattr(self.start.splits, part)}
        return {
            "run": str(self.start.path.resolve()),
            "catalogues": list(self.catalogues),
            "new_items": {part: len(set(getattr(self.splits, part)) - known) for part in PARTS},
        }

    def model(self) -> EmbeddingModel:
        """Return the model of the earlier run's best epoch."""
        return self.start.best_model().train()

    def write(self, run: Run, *, settings: Settings, model: EmbeddingModel, held_out: Sequence[str]) -> None:
        """Write the start of the new run: model, loss and projector."""
        projector = self.start.load(LAST)[0].get("projector.weight") if settings.projector else None
        torch.manual_seed(settings.seed)
        loss = build_loss(settings, classes=len(self.splits.fit))
        photos = photos_in_protocol(self.photos, self.splits.fit, self.protocol, left_out=held_out)
        self._start_directions(loss, model.to(choose_device()), projector, photos)
        parts = nn.ModuleDict({"model": model, "loss": loss}).state_dict()
        run.save(START, parts if projector is None else {**parts, "projector.weight": projector})

    def _start_directions(
        self, loss: nn.Module, model: EmbeddingModel, projector: Tensor | None, photos: Sequence[Photo]
    ) -> None:
        """Set the directions that a loss learns, one per item, to the mean embeddings of the items as the loss sees."""
        tables = [p for name, p in loss.named_parameters() if name.rpartition(".")[2] in DIRECTIONS]
        if not tables:
            return
        labels = item_labels(photos, self.splits.fit)
        chosen = first_of_each(labels, PHOTOS_EACH)
        reader = PhotoReader([photos[i] for i in chosen], self.start.preprocessing, cache_bytes=0)
        vectors = torch.from_numpy(embed_photos(model, reader, len(chosen), self.start.preprocessing))
        if projector is not None:
            vectors = F.normalize(vectors @ projector.float().T, dim=1)
        sums = torch.zeros(len(self.splits.fit), vectors.shape[1])
        sums = sums.index_add(0, torch.from_numpy(labels[chosen]), vectors)
        there = torch.from_numpy(np.unique(labels))  # items of the earlier run may have no photos any more
        for table in tables:
            norm = table.detach().norm(dim=1).mean()
            table.data[there] = F.normalize(sums[there], dim=1).to(table) * norm


def check_network(settings: Settings, earlier: Settings) -> None:
    """Raise InvalidParameter if settings describe another network than that of an earlier run."""
    for name in NETWORK:
        value, kept = getattr(settings, name), getattr(earlier, name)
        if value != kept and (value or name != "dim"):  # 0 is the default length
            raise InvalidParameter(
                name,
                f"be {kept!r}, that of the run to start from",
                value,
                remedy=f"Leave --{name.replace('_', '-')} out, or train without --from",
            )


def model_before(run: Run) -> tuple[EmbeddingModel | PretrainedModel, Preprocessing]:
    """Return the model that a run started from and its preprocessing: an earlier run's, or the pretrained one.

    A pretrained model is as `export --pretrained` serves it. A network that is trained from scratch has random weights.
    """
    if run.has(START):
        return _stored_model(run, START), run.preprocessing
    name = run.settings.backbone
    if name == SMALL:
        return initial_model(run.settings)[0], run.preprocessing
    return PretrainedModel(load_backbone(name)[0]), published_preprocessing(name)


def first_model(run: Run) -> EmbeddingModel:
    """Return the network that a run begins or goes on with."""
    stored = next((name for name in (LAST, START) if run.has(name)), None)
    return initial_model(run.settings)[0] if stored is None else _stored_model(run, stored)


def _stored_model(run: Run, name: str) -> EmbeddingModel:
    model = run.new_model()
    nn.ModuleDict({"model": model}).load_state_dict(run.load(name)[0], strict=False)
    return model
