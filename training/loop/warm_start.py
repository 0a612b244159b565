"""Warm start: a run that begins with the weights of an earlier one, and trains on its items and new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.catalogue.extended_splits import extend_splits
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import EvaluationProtocol, Splits, photos_in_protocol
from retrieval.errors import InvalidParameter
from retrieval.files import write_file
from training.config import SPLIT_SEED, Settings
from training.data.continued import copies_across, merge_catalogues
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_photos
from training.model import EmbeddingModel

from .learner import under
from .recipe import build_loss, initial_model
from .run import BEST, FITTED, LAST, START, Run

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
        parts = splits or extend_splits(start.splits, photos, seed=SPLIT_SEED)
        copies = copies_across(photos, parts, added=merged.added)
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
        loss = self._loss(settings, model.to(device), projector)
        tensors |= {f"loss.{name}": value for name, value in loss.state_dict().items()}
        if projector is not None:
            tensors["projector.weight"] = projector
        run.save(START, tensors)
        write_file(run.path / FITTED, self.start.fitted_on().pack())

    def _loss(self, settings: Settings, model: EmbeddingModel, projector: Tensor | None) -> nn.Module:
        """Return a new loss whose learned directions, one per item, are the mean embeddings of the items."""
        torch.manual_seed(settings.seed)
        loss = build_loss(settings, classes=len(self.splits.fit))
        tables = [p for name, p in loss.named_parameters() if name.rpartition(".")[2] in DIRECTIONS]
        if not tables:
            return loss
        fit = photos_in_protocol(self.photos, self.splits.fit, self.protocol)
        means = self._means(fit, model, projector)
        with torch.no_grad():
            for table in tables:
                norm = table.norm(dim=1).mean()
                for row, item in enumerate(sorted(means)):  # items without photos come last
                    table[row] = F.normalize(means[item].to(table), dim=0) * norm
        return loss

    def _means(self, photos: Sequence[Photo], model: EmbeddingModel, projector: Tensor | None) -> dict[str, Tensor]:
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
        return {item: vectors[torch.from_numpy(items == item)].mean(dim=0) for item in counts}


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
