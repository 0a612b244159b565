"""Training of a run, or of a run on all items with its fold runs, each of which leaves out a fold of the items.

Items that a model was fitted on do not show how far unknown items come. A run on all items therefore has fold runs,
RUN/folds/0 … 4, each trained without the items of one fold, with the same settings. Their models make the draws of
these items in a gallery (cross-fitting, `retrieval.measuring.folds`). The first fold run also judges: it is
compared with the model that training started from, for new photos of items that it was fitted on and of items
that it was not fitted on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tqdm import tqdm

from index.files import holding
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import Splits, photos_in_protocol
from retrieval.errors import RunError, counted
from retrieval.files import write_file
from training.config import Settings
from training.data.folds import FOLD_SEED, Fold, item_folds
from training.data.sources import FEATURES, save_features
from training.evaluation.embedding import embed_catalogue
from training.evaluation.mixed import MixedGallery
from training.model import EmbeddingModel

from .begin import begin_run, to_hold_out
from .distributed import ProcessGroup
from .run import FITTED, FOLD_COUNT, FOLDS, LAST, Run, entries, fitted_on, held_out_in, note_fitted, remove_new
from .selection import LAST_EPOCH
from .trainer import EpochCallback, Trainer
from .warm_start import model_before


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
    """Train or resume the run at `path`, and return it; with `settings.all_items`, its fold runs too.

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
        trainer = Trainer(
            Run.open(path), photos=photos, model=model, process_group=group, on_epoch=on_epoch, keep_start=keep_start
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


def train_on_all_items(
    settings: Settings,
    path: Path,
    *,
    resume: bool = False,
    start: Run | None = None,
    on_epoch: EpochCallback | None = None,
) -> Run:
    """Train or resume a run on every item of a catalogue, and its fold runs. An interrupted run goes on where it was.

    Raises what `train` does, DataError for too few items or groups to fill the folds, and RunError for a run to start
    from, since its weights know the items that a fold leaves out.
    """
    if start is not None:
        raise RunError(
            f"a run on all items cannot begin with the weights of {start.path}, which know the items that its folds "
            "leave out",
            remedy="Train without --from, on one table of the earlier and the new photos",
        )
    photos = read_catalogue(settings.catalogue)
    items = tuple(sorted({photo.item_id for photo in photos}))
    folds = item_folds(photos, items, folds=FOLD_COUNT, seed=FOLD_SEED)
    whole_splits = Splits(fit=items, validation=(), calibration=(), test=())
    settings = replace(settings, select=LAST_EPOCH, patience=0)
    if resume:
        _check_catalogue(Run.open(path), items, folds)
    whole = train(settings, path, resume=resume, splits=whole_splits, on_epoch=on_epoch)
    for number, fold in enumerate(folds):
        _train_fold(whole, photos, number, fold)
    return whole


def _check_catalogue(whole: Run, items: Sequence[str], folds: Sequence[Fold]) -> None:
    """Raise RunError if a begun run has other items than the catalogue, or a begun fold run is of another fold."""
    begun = [(Run(whole.path / FOLDS / str(number)), fit) for number, (fit, _) in enumerate(folds)]
    changed = [fold for fold, fit in begun if (fold.path / "settings.json").exists() and fold.splits.fit != fit]
    if changed or whole.splits.fit != items:
        raise RunError(
            f"the catalogue {whole.settings.catalogue} has other {'groups' if whole.splits.fit == items else 'items'} "
            f"than when {whole.path} was begun",
            remedy="Restore it, or train a new run in another directory",
        )


def _train_fold(whole: Run, photos: Sequence[Photo], number: int, fold: Fold) -> None:
    """Train, resume or keep the run of a fold. Only the first one has validation items, which choose nothing."""
    path, group = whole.path / FOLDS / str(number), ProcessGroup.join()
    fit, left_out = fold
    splits = Splits(fit=fit, validation=left_out if not number else (), calibration=(), test=())
    begun = (path / "settings.json").exists()
    if begun and Run.open(path).progress.get("epoch") == whole.settings.epochs:
        return
    if group.is_main:
        tqdm.write(f"Fold {number + 1} of {FOLD_COUNT}: without {counted(len(left_out), 'item')}.")
        if not (path / FITTED).exists():
            path.mkdir(parents=True, exist_ok=True)
            write_file(path / FITTED, fitted_on(set(fit), photos).pack())
        if whole.settings.precompute and not (path / FEATURES).exists():
            _share_features(whole, photos, path, splits)
    group.barrier()
    train(
        replace(whole.settings, all_items=False),
        path,
        resume=begun,
        splits=splits,
        check_photos=False,
        keep_start=not number,
    )


def _share_features(whole: Run, photos: Sequence[Photo], path: Path, splits: Splits) -> None:
    """Write the features of a fold's photos, taken from the features of all photos."""
    protocol, views = whole.protocol, load_file(whole.path / FEATURES)["fit"]
    every = photos_in_protocol(photos, whole.splits.fit, protocol)
    rows = {photo.photo_id: row for row, photo in enumerate(every)}
    held_out = [*to_hold_out(photos, splits.fit, protocol)] if splits.validation else []
    fit = photos_in_protocol(photos, splits.fit, protocol, left_out=held_out)
    searched: Sequence[Photo] = ()
    before = np.zeros((0, 0), np.float32)
    if splits.validation:
        mixed = MixedGallery.of(photos, held_out=held_out, unfitted=splits.validation, protocol=protocol)
        searched, (model, preprocessing) = mixed.photos, model_before(whole)
        before = embed_catalogue(model, searched, preprocessing)
    features = {
        "fit": views[:, [rows[photo.photo_id] for photo in fit]],
        "searched": views[0, [rows[photo.photo_id] for photo in searched]],
        "before": before,
    }
    save_features(path, features, fit, searched)
