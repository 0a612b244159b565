"""The start of a run: checks of settings and photos, the division of items, and the run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import (
    EvaluationProtocol,
    Splits,
    make_evaluation_protocol,
    make_splits,
    photos_in_protocol,
    photos_to_hold_out,
    require_mates,
)
from retrieval.errors import counted, photos_of_items
from retrieval.files import write_file
from training.backbones import backbone_preprocessing
from training.backbones.hub import resolved
from training.config import Settings
from training.data.continued import photo_content
from training.data.reader import require_readable
from training.evaluation.mixed import LEAST_JUDGED
from training.model import EmbeddingModel

from .distributed import ProcessGroup
from .optimizer import schedule
from .recipe import check_recipe, initial_model, make_sampler
from .run import FITTED, Run, fitted_on
from .warm_start import Continuation


def begin_run(
    settings: Settings,
    path: Path,
    process_group: ProcessGroup,
    *,
    start: Run | None = None,
    splits: Splits | None = None,
    check: bool = True,
    hold_out: bool = True,
) -> tuple[list[Photo], EmbeddingModel]:
    """Check the settings and the photos, and write the run directory; return the photos and the initial model."""
    continued = None if start is None else Continuation.of(start, settings, splits=splits)
    if continued is None:
        photos = read_catalogue(settings.catalogue)
        splits = splits or make_splits(photos)
        protocol = make_evaluation_protocol(photos)
    else:
        photos, splits, protocol = continued.photos, continued.splits, continued.protocol
    if splits.validation:
        require_mates("validation", photos, splits.validation, protocol)
    seen = () if continued is None else continued.seen
    contents = to_hold_out(photos, splits.fit, protocol, seen=seen) if splits.validation and hold_out else {}
    held_out = [*contents]
    fit = photos_in_protocol(photos, splits.fit, protocol, left_out=held_out)
    settings = schedule(settings, photos=len(fit), items=len(splits.fit))
    settings = replace(settings, backbone=resolved(settings.backbone))
    check_recipe(settings, splits)
    batches = make_sampler(settings, fit).batches
    if continued is None:
        (model, config), size = initial_model(settings), settings.input_size
        preprocessing = backbone_preprocessing(settings.backbone, size=size, crop_ratio=settings.crop_ratio)
    else:
        model, config, preprocessing = continued.model(), continued.start.backbone_config, continued.start.preprocessing
    settings = replace(settings, dim=model.head.out_features)
    parts = {"parts": splits.to_dict(), "protocol": vars(protocol)}
    documents: dict[str, Any] = {
        "settings": settings.to_dict(),
        "splits": {**parts, "held_out": held_out, "held_out_content": contents},
        "backbone": {"config": config, "preprocessing": preprocessing.to_dict()},
    }
    if continued is not None:
        documents["warm_start"] = continued.document()
    if process_group.is_main:
        if check:
            unfitted, new = set(splits.validation), set(held_out)
            searched = [photo for photo in photos if photo.item_id in unfitted or photo.photo_id in new]
            require_readable([*fit, *searched], preprocessing)

        def prepare(run: Run) -> None:
            earlier = None if start is None else start.fitted_on()
            if check or earlier:  # now, because the catalogue may change before the export
                write_file(run.path / FITTED, fitted_on(set(splits.fit), photos).union(earlier).pack())
            if continued is not None:
                continued.write(run, settings=settings, model=model, held_out=held_out)

        Run.create(path, documents, prepare=prepare)
        _show_length(settings, splits, photos=len(fit), batches=batches)
    process_group.barrier()
    return Run.open(path).without_fitted(photos), model


def to_hold_out(
    photos: Sequence[Photo], fit: Sequence[str], protocol: EvaluationProtocol, *, seen: Collection[str] = ()
) -> dict[str, str]:
    """Return the content hashes of photos to hold out by id, without photos that have a copy in their item."""
    chosen = photos_to_hold_out(photos, fit, protocol, seen=seen)
    new, items = set(chosen), set(fit)
    shown = {photo.item_id for photo in photos if photo.photo_id in new}
    contents = {photo.photo_id: photo_content(photo) for photo in photos if photo.item_id in shown & items}
    times = Counter(contents.values())
    return {photo_id: contents[photo_id] for photo_id in chosen if times[contents[photo_id]] == 1}


def _show_length(settings: Settings, splits: Splits, *, photos: int, batches: int) -> None:
    """Print how long the training will be, and whether it has too few items to choose a checkpoint."""
    steps = settings.epochs * batches
    length = f"{counted(settings.epochs, 'epoch')} of {counted(batches, 'batch', 'batches')} ({steps:,} steps)"
    tqdm.write(f"Training on {photos_of_items(photos, len(splits.fit))}: {length}.")
    if 0 < len(splits.validation) < LEAST_JUDGED:
        few = f"{counted(len(splits.validation), 'item')} for validation, too few to choose a checkpoint"
        tqdm.write(f"The last epoch will serve: {few} (minimum {LEAST_JUDGED}).")
