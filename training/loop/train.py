"""Start or resume a training: check the settings and the photos, write the run directory, run the trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from index.files import holding
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
from retrieval.errors import RunError, counted, photos_of_items
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
from .run import FITTED, LAST, Run, entries, fitted_on, held_out_in, note_fitted, remove_new
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
    check_photos: bool = True,
    keep_start: bool = True,
) -> Run:
    """Train or resume the run at `path`, and return it; with `settings.all_items`, its fold runs too (`cross_fitting`).

    A training that fails in its first epoch leaves no files; one that is interrupted or killed can be resumed, with the
    same weights at the end on the same machine: random choices depend on (seed, epoch).

    Parameters
    ----------
    resume:
        Continue the run with its own settings.
    start:
        Run to begin with: its weights, and its photos together with those of `settings.catalogue`.
    splits:
        Parts of the items, in place of those of `make_splits` or of all items. With fewer than 5 validation items, the
        last epoch is kept.
    on_epoch:
        Called after each epoch with the number of finished epochs and their metrics. An exception that it raises ends
        the run, which can be resumed.
    check_photos:
        Open every photo before anything is written.
    keep_start:
        Compare with the model before training, with a photo of each fitted item held out; keep it if none is better.

    Raises
    ------
    DataError, InvalidParameter
        If the labels or the photos cannot be used, and for settings that cannot be trained.
    RunError, TrainingDiverged
        If `path` already contains a run, or contains none to resume; if a loss, a weight or an embedding is not finite.
    """
    if settings.all_items and splits is None:
        from .cross_fitting import train_on_all_items

        return train_on_all_items(settings, path, resume=resume, start=start, on_epoch=on_epoch)
    group = ProcessGroup.join()
    photos: list[Photo]
    model: EmbeddingModel | None
    with _folder(path, group, resume=resume):
        if resume:
            photos, model = _photos_to_resume(path, group), None
        else:
            photos, model = begin_run(
                settings, path, group, start=start, splits=splits, check=check_photos, hold_out=keep_start
            )
        group.barrier()
        run = Run.open(path)
        trainer = Trainer(
            run, photos=photos, model=model, process_group=group, on_epoch=on_epoch, keep_start=keep_start
        )
        return trainer.run_epochs()


@contextmanager
def _folder(path: Path, group: ProcessGroup, *, resume: bool) -> Iterator[None]:
    """Hold the folder of a run, and remove what a new run that fails without an epoch has left there.

    Raises RunError if another process trains in it.
    """
    if not group.is_main or (resume and not path.is_dir()):
        yield
        return
    before = entries(path)
    path.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(holding(path))
        except BlockingIOError as error:
            raise RunError(
                f"another process trains in {path}", remedy="Wait for its end, or choose another directory"
            ) from error
        try:
            yield
        except Exception:  # of the model, the data or the device
            if not (resume or Run(path).has(LAST)):
                remove_new(path, before)
            raise


def _photos_to_resume(path: Path, group: ProcessGroup) -> list[Photo]:
    """Return the photos of a run to resume, and note those that it will be fitted on."""
    run = Run.open(path)
    photos = run.photos()
    if len(held_out_in(run, photos)) < len(run.held_out):
        raise RunError(
            f"photos that {path} holds out to search for were renamed, replaced or removed since it began",
            remedy="Restore them, or train a new run in another directory",
        )
    if group.is_main:
        note_fitted(run, photos)
    return photos


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
        _tell(settings, splits, photos=len(fit), batches=batches)
    process_group.barrier()
    return Run.open(path).without_fitted(photos), model


def to_hold_out(
    photos: Sequence[Photo], fit: Sequence[str], protocol: EvaluationProtocol, *, seen: Collection[str] = ()
) -> dict[str, str]:
    """Return the content hashes of photos to hold out by id, without those that have a copy in their item."""
    chosen = photos_to_hold_out(photos, fit, protocol, seen=seen)
    new, items = set(chosen), set(fit)
    shown = {photo.item_id for photo in photos if photo.photo_id in new}
    found = {photo.photo_id: photo_content(photo) for photo in photos if photo.item_id in shown & items}
    times = Counter(found.values())
    return {photo_id: found[photo_id] for photo_id in chosen if times[found[photo_id]] == 1}


def _tell(settings: Settings, splits: Splits, *, photos: int, batches: int) -> None:
    """Tell how long the training will be, and whether it has too few items to choose a checkpoint."""
    steps = settings.epochs * batches
    length = f"{counted(settings.epochs, 'epoch')} of {counted(batches, 'batch', 'batches')} ({steps:,} steps)"
    tqdm.write(f"Training on {photos_of_items(photos, len(splits.fit))}: {length}.")
    if 0 < len(splits.validation) < LEAST_JUDGED:
        few = f"{counted(len(splits.validation), 'item')} for validation, too few to choose a checkpoint"
        tqdm.write(f"The last epoch will serve: {few} (minimum {LEAST_JUDGED}).")
