"""Start or resume a training: check the settings and the photos, write the run directory, run the trainer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import (
    Splits,
    make_evaluation_protocol,
    make_splits,
    photos_in_protocol,
    require_mates,
)
from training.backbones import backbone_preprocessing
from training.config import SPLIT_SEED, Settings
from training.data.reader import require_readable
from training.model import EmbeddingModel

from .distributed import ProcessGroup
from .optimizer import describe, schedule
from .recipe import check_recipe, initial_model, make_sampler
from .run import LAST, Run, Traces
from .trainer import EpochCallback, Trainer
from .warm_start import Continuation


def train(
    settings: Settings,
    path: Path,
    *,
    resume: bool = False,
    start: Run | None = None,
    splits: Splits | None = None,
    on_epoch: EpochCallback | None = None,
    unguarded: bool = False,
) -> Run:
    """Train or resume the run at `path`, and return it.

    Every photo is opened first. A training that fails in its first epoch leaves no files; one that is interrupted or
    killed can be resumed, with the same weights at the end on the same machine: random choices depend on (seed, epoch).

    Parameters
    ----------
    resume:
        Continue the run with its own settings.
    start:
        Run to begin with: its weights, and its photos together with those of `settings.catalogue`.
    splits:
        Parts of the items, in place of those of `make_splits`. Without validation items, `settings.select` must be
        "last".
    on_epoch:
        Called after each epoch with the number of finished epochs and their metrics. An exception that it raises ends
        the run, which can be resumed.
    unguarded:
        Neither open the photos first nor remove the files of a training that fails; the caller must do so.

    Raises
    ------
    DataError, InvalidParameter
        If the labels or the photos cannot be used, and for settings that cannot be trained.
    RunError
        If `path` already contains a run, or contains none to resume.
    """
    settings = Run.open(path).settings if resume else settings
    process_group = ProcessGroup.join()
    traces = Traces(path)
    begin = partial(begin_run, start=start, splits=splits, unguarded=unguarded)
    photos, model = (None, None) if resume else begin(settings, path, process_group=process_group)
    try:
        trainer = Trainer(Run.open(path), photos=photos, model=model, process_group=process_group, on_epoch=on_epoch)
        return trainer.run_epochs()
    except Exception:  # of the model, the data or the device: a run without an epoch is removed
        if process_group.is_main and not (resume or unguarded or Run(path).has(LAST)):
            traces.remove()
        raise


def begin_run(
    settings: Settings,
    path: Path,
    *,
    start: Run | None = None,
    splits: Splits | None = None,
    process_group: ProcessGroup | None = None,
    unguarded: bool = False,
) -> tuple[list[Photo], EmbeddingModel]:
    """Check the settings and, unless `unguarded`, the photos; write the run directory.

    Returns the photos and the initial model.
    """
    process_group = process_group or ProcessGroup.join()
    continued = None if start is None else Continuation.of(start, settings, splits=splits)
    if continued is None:
        photos = read_catalogue(settings.catalogue)
        splits = splits or make_splits(photos, seed=SPLIT_SEED)
        protocol = make_evaluation_protocol(photos)
    else:
        photos, splits, protocol = continued.photos, continued.splits, continued.protocol
    if splits.validation:
        require_mates("validation", photos, splits.validation, protocol)
    fit = photos_in_protocol(photos, splits.fit, protocol)
    settings = schedule(settings, photos=len(fit), items=len(splits.fit))
    check_recipe(settings, splits)
    batches = make_sampler(settings, fit).batches
    if continued is None:
        (model, config), size = initial_model(settings), settings.input_size
        preprocessing = backbone_preprocessing(settings.backbone, size=size, crop_ratio=settings.crop_ratio)
    else:
        model, config, preprocessing = continued.model(), continued.start.backbone_config, continued.start.preprocessing
    if not unguarded:
        validation_items = set(splits.validation)
        to_open = [*fit, *(photo for photo in photos if photo.item_id in validation_items)]
        process_group.run_on_main(lambda: require_readable(to_open, preprocessing))
    documents: dict[str, Any] = {
        "settings": settings.to_dict(),
        "splits": {"parts": splits.to_dict(), "protocol": vars(protocol)},
        "backbone": {"config": config, "preprocessing": preprocessing.to_dict()},
    }
    if continued is not None:
        documents["warm_start"] = continued.document()

    def prepare(run: Run) -> None:
        if continued is not None:
            continued.write(run, settings, process_group.device)

    process_group.run_on_main(lambda: Run.create(path, documents, prepare=prepare))
    if process_group.is_main:
        length = describe(settings, batches=batches)
        tqdm.write(f"Training on {len(fit)} photos of {len(splits.fit)} items: {length}.")
    return photos, model
