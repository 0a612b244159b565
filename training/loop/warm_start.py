"""Warm start: a run that begins with the weights of an earlier one, and trains on its items and new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.catalogue.extended_splits import extend_splits
from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter
from retrieval.files import write_file
from training.config import Settings
from training.data.continued import merge_catalogues
from training.data.copies import copies_across
from training.data.reader import PhotoReader
from training.data.splits import EvaluationProtocol, Splits, make_evaluation_protocol, photos_in_protocol
from training.evaluation.embedding import embed_photos
from training.model import EmbeddingModel

from .class_tables import carry_classes, has_directions, set_new_classes
from .fitted import fitted_on
from .learner import under
from .recipe import build_loss, initial_model
from .run import BEST, FITTED, LAST, START, Run

NETWORK = ("backbone", "size", "crop_ratio", "dim", "pooling", "projector")  # settings that must not change
PHOTOS_EACH = 16  # photos of a new item; their mean embedding is the start of its proxy


@dataclass(frozen=True)
class Continuation:
    """A run to continue, with the photos, protocol and splits of the new one."""

    start: Run
    catalogues: Sequence[str]
    photos: list[Photo]
    protocol: EvaluationProtocol
    splits: Splits
    left_out: Sequence[str] = ()  # ids of new photos that are copies of photos on the other side of the partition

    @classmethod
    def of(cls, start: Run, settings: Settings, *, splits: Splits | None = None) -> Continuation:
        """Read the photos and divide the new items.

        Raises InvalidParameter if the settings describe another network than that of the run, RunError if the run has
        no checkpoint, DataError if the new photos cannot be used.
        """
        check_network(settings, start.settings)
        if not start.has(BEST):
            start.load(BEST)  # raises the error
        catalogues = list(dict.fromkeys([*start.catalogues, settings.catalogue]))
        protocol = start.protocol
        merged = merge_catalogues(catalogues, protocol)
        photos = merged.photos
        if any(getattr(settings, name) != getattr(start.settings, name) for name in ("gallery_source", "query_source")):
            protocol = make_evaluation_protocol(
                photos, gallery_source=settings.gallery_source, query_source=settings.query_source
            )
        parts = splits or extend_splits(start.splits, photos, seed=settings.split_seed)
        copies = copies_across(photos, parts, added=merged.added, threads=settings.decoders)
        kept = [photo for photo in photos if photo.photo_id not in set(copies)]
        return cls(start, catalogues, kept, protocol, parts, copies)

    def document(self) -> dict[str, Any]:
        """Return the facts about the earlier run that the new run records."""
        before, now = self.start.splits.to_dict(), self.splits.to_dict()
        known = {item for items in before.values() for item in items}
        return {
            "run": str(self.start.path.resolve()),
            "catalogues": list(self.catalogues),
            "left_out": list(self.left_out),
            "new_items": {part: sum(item not in known for item in items) for part, items in now.items()},
        }

    def model(self) -> EmbeddingModel:
        """Return the model of the earlier run's best epoch."""
        return self.start.best_model().train()

    def write(self, run: Run, settings: Settings, device: torch.device) -> None:
        """Write the start of the new run: model, loss and projector, and what earlier runs were fitted on."""
        model = self.model()
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        last = self.start.load(LAST)[0] if self.start.has(LAST) else {}
        projector = last.get("projector.weight") if settings.projector else None
        old = under(last, "loss.")
        old = under(old, "loss.") if "centres" in old else old  # of a run that was to be compatible with a bundle
        loss = self._loss(settings, model.to(device), old, projector)
        tensors |= {f"loss.{name}": value for name, value in loss.state_dict().items()}
        if projector is not None:
            tensors["projector.weight"] = projector
        run.save(START, tensors)
        write_file(run.path / FITTED, fitted_on(self.start).pack())

    def _loss(
        self, settings: Settings, model: EmbeddingModel, old: Mapping[str, Tensor], projector: Tensor | None
    ) -> nn.Module:
        """Return the loss with the rows of known items, and the mean embeddings of new items as their rows."""
        torch.manual_seed(settings.seed)
        loss = build_loss(settings, classes=len(self.splits.fit))
        if not has_directions(loss):
            return loss
        fit = photos_in_protocol(self.photos, self.splits.fit, self.protocol)
        before = self._items_of_rows() if old and settings.loss == self.start.settings.loss else []
        items = sorted({photo.item_id for photo in fit})
        items += [""] * (len(self.splits.fit) - len(items))  # rows of items without photos, which come last
        means = self._means([photo for photo in fit if photo.item_id not in before], model, projector)
        if before:
            earlier = build_loss(self.start.settings, classes=len(before))
            earlier.load_state_dict(dict(old))
            carry_classes(earlier, loss, old_items=before, new_items=items, means=means)
        else:
            set_new_classes(loss, items, means)
        return loss

    def _items_of_rows(self) -> list[str]:
        """Return the items of the rows of the earlier loss, none if they are not known.

        Rows number the items with photos in ascending order. If an item has no photos now, it is not known whether it
        had any when the run was trained.
        """
        splits = self.start.splits
        fit = photos_in_protocol(self.start.photos(), splits.fit, self.start.protocol)
        return list(splits.fit) if {photo.item_id for photo in fit} == set(splits.fit) else []

    def _means(self, photos: Sequence[Photo], model: EmbeddingModel, projector: Tensor | None) -> dict[str, np.ndarray]:
        """Return the mean embedding (d,) of each item, as the loss sees it, from at most PHOTOS_EACH photos."""
        counts: Counter[str] = Counter()
        chosen = []
        for photo in photos:
            counts[photo.item_id] += 1
            if counts[photo.item_id] <= PHOTOS_EACH:
                chosen.append(photo)
        preprocessing = self.start.preprocessing
        reader = PhotoReader(chosen, preprocessing, cache_bytes=0)
        vectors = torch.from_numpy(embed_photos(model, reader, len(chosen), preprocessing))
        if projector is not None:
            vectors = F.normalize(vectors @ projector.float().T, dim=1)
        items = np.array([photo.item_id for photo in chosen])
        return {item: vectors[torch.from_numpy(items == item)].mean(dim=0).numpy() for item in counts}


def check_network(settings: Settings, earlier: Settings) -> None:
    """Raise InvalidParameter if settings describe another network than that of an earlier run."""
    for name in NETWORK:
        field = "embedding_size" if name == "dim" else name
        value, kept = getattr(settings, field), getattr(earlier, field)
        if value != kept:
            raise InvalidParameter(
                name,
                f"be {kept!r}, that of the run to start from",
                value,
                remedy=f"Leave --{name.replace('_', '-')} out, or train without --from",
            )


def first_model(run: Run) -> EmbeddingModel:
    """Return the network that a run begins with; for a resumed run, its weights come from the checkpoint later."""
    if run.has(LAST):
        return run.new_model()
    if not run.has(START):
        return initial_model(run.settings)[0]
    model = run.new_model()
    model.load_state_dict(under(run.load(START)[0], "model."))
    return model
