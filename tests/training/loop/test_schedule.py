import dataclasses

import pytest

from training.config import Settings
from training.loop.optimizer import HEAD_ONLY, MOST_EPOCHS, WHOLE_MODEL, schedule

WHOLE, HEAD = Settings(""), Settings("", precompute=4)
BATCH = WHOLE.items_per_batch * WHOLE.photos_per_item


def steps_of(settings: Settings, photos: int, items: int = 100) -> int:
    planned = schedule(settings, photos=photos, items=items)
    return planned.epochs * planned.epoch_steps


def test_a_number_of_epochs_that_was_given_rules() -> None:
    given = dataclasses.replace(WHOLE, epochs=3)
    assert schedule(given, photos=10, items=5) == given


@pytest.mark.parametrize(("settings", "rule"), [(WHOLE, WHOLE_MODEL), (HEAD, HEAD_ONLY)])
def test_the_steps_fit_the_size_of_the_data(settings: Settings, rule: tuple[int, int]) -> None:
    assert steps_of(settings, 100) == rule[0]
    assert steps_of(settings, 100 * BATCH) == 800
    assert steps_of(settings, 10**8) == pytest.approx(rule[1], rel=0.01)
    counts = [steps_of(settings, photos) for photos in (10, 10**3, 10**4, 10**5, 10**6)]
    assert counts == sorted(counts)


@pytest.mark.parametrize("photos", [1, 70, 5_000, 50_000, 10**7])
def test_epochs_are_few_and_those_of_large_sets_are_passes(photos: int) -> None:
    planned = schedule(WHOLE, photos=photos, items=1000)
    assert 1 <= planned.epochs <= MOST_EPOCHS
    if photos == 50_000:
        assert (planned.epochs, planned.epoch_steps) == (8, photos // BATCH)


def test_fewer_items_than_a_batch_has_fill_smaller_batches() -> None:
    assert steps_of(WHOLE, 64_000, items=4) > steps_of(WHOLE, 64_000, items=16)


def test_a_number_of_batches_per_epoch_is_kept() -> None:
    planned = schedule(dataclasses.replace(WHOLE, epoch_steps=7), photos=100, items=20)
    assert planned.epoch_steps == 7
    assert planned.epochs * 7 >= WHOLE_MODEL[0] > (planned.epochs - 1) * 7
