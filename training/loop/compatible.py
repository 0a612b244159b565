"""Runs whose model embeds queries for galleries of an earlier bundle (`retrieval train --compatible-with`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter, command
from retrieval.files import write_file
from retrieval.images import crop, open_image
from training.config import Settings
from training.losses.influence import BackwardCompatible

from .run import Run

CENTRES = "compatible"  # name of the checkpoint with the centres
DOCUMENT = "compatible_with.json"
PHOTOS_EACH, BATCH = 32, 16  # photos per item for its centre; photos embedded at a time


@dataclass(frozen=True)
class Compatibility:
    """An earlier bundle, and the mean of its embeddings of each item (C, d)."""

    bundle: Bundle
    centres: Tensor

    @classmethod
    def of(cls, bundle: Bundle, photos: Sequence[Photo], settings: Settings) -> Compatibility:
        """Embed the training photos with the earlier bundle.

        Raises InvalidParameter if the embeddings have another length, or if the bundle verifies matches.
        """
        check_settings(settings, bundle)
        embedder = bundle.embedder(threads=torch.get_num_threads())
        counts: Counter[str] = Counter()
        chosen = []
        for photo in photos:
            counts[photo.item_id] += 1
            if counts[photo.item_id] <= PHOTOS_EACH:
                chosen.append(photo)
        items = np.array([photo.item_id for photo in chosen])
        vectors = np.concatenate([_embed(embedder, chosen[at : at + BATCH]) for at in range(0, len(chosen), BATCH)])
        centres = np.stack([vectors[items == item].mean(axis=0) for item in sorted(counts)])
        return cls(bundle, torch.from_numpy(centres))

    def write(self, run: Run, *, classes: int) -> None:
        """Write the centres and the ids of the bundle to a run; classes without photos come last and get zeros."""
        missing = self.centres.new_zeros(classes - len(self.centres), self.centres.shape[1])
        run.save(CENTRES, {"centres": torch.cat([self.centres, missing])})
        ids = {"embedding_id": self.bundle.embedding_id, "bundle_id": self.bundle.bundle_id}
        write_file(run.path / DOCUMENT, json.dumps({**ids, "bundle": str(self.bundle.path)}, indent=2) + "\n")


def check_settings(settings: Settings, bundle: Bundle) -> None:
    """Raise InvalidParameter if a model with these settings cannot search the galleries of a bundle."""
    if settings.dim != bundle.dim:
        raise InvalidParameter(
            "dim",
            f"be {bundle.dim}, the embedding size of the bundle in --compatible-with",
            settings.dim,
            remedy=f"Pass --dim {bundle.dim}",
        )
    if settings.projector:
        raise InvalidParameter(
            "projector", "be 0 with --compatible-with, which compares embeddings", settings.projector
        )
    if bundle.verifier is not None:
        raise InvalidParameter(
            "--compatible-with",
            "be a bundle that does not verify matches by local features",
            bundle.path.name,
            remedy=f"`{command('export', 'RUN', '-o', 'NEW', '--verify', 'off', '--allow-estimate')}` writes one",
        )


def with_influence(run: Run, loss: nn.Module) -> nn.Module:
    """Return the loss of a run, with the influence loss if the run was started with `compatible_with`."""
    if not run.has(CENTRES):
        return loss
    return BackwardCompatible(loss, run.load(CENTRES)[0]["centres"], weight=run.settings.compatible_weight)


def compatible_with(run: Run) -> str | None:
    """Return the embedding id of the bundle that a run's model is compatible with, None if there is none."""
    path = run.path / DOCUMENT
    return str(json.loads(path.read_text())["embedding_id"]) if path.exists() else None


def _embed(embedder: Embedder, photos: Sequence[Photo]) -> np.ndarray:
    return embedder.embed([crop(open_image(photo.read()), photo.bbox) for photo in photos]).vectors
