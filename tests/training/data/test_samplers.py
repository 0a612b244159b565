from collections import Counter

import numpy as np
import pytest

from retrieval.errors import InvalidParameter
from training.data.samplers import GroupItemSampler, ItemSampler, PhotoSampler

LABELS = np.repeat(np.arange(10), [3, 8, 8, 8, 8, 8, 8, 8, 8, 20]).tolist()


def sampler(seed: int = 0) -> ItemSampler:
    return ItemSampler(LABELS, items_per_batch=4, photos_per_item=4, seed=seed)


def test_a_batch_holds_p_items_with_k_photos_side_by_side() -> None:
    for batch in sampler().epoch(0):
        labels = np.array(LABELS)[batch].reshape(4, 4)
        assert (labels == labels[:, :1]).all()
        assert len(set(labels[:, 0])) == 4


def test_items_come_round_equally_often() -> None:
    dealt: Counter[int] = Counter()
    for epoch in range(20):
        for batch in sampler().epoch(epoch):
            dealt.update(np.array(LABELS)[batch][::4].tolist())
    assert max(dealt.values()) - min(dealt.values()) <= 20  # at most one an epoch


def test_photos_repeat_only_when_an_item_has_too_few() -> None:
    for batch in sampler().epoch(0):
        for item, photos in zip(np.array(LABELS)[batch][::4], batch.reshape(4, 4), strict=True):
            assert len(set(photos)) == (3 if item == 0 else 4)


def test_seed_and_epoch_decide() -> None:
    def dealt(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in sampler(seed).epoch(epoch)]

    assert dealt(0, 5) == dealt(0, 5)
    assert dealt(0, 5) != dealt(0, 6)
    assert dealt(0, 5) != dealt(1, 5)


def test_one_item_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="two items"):
        ItemSampler([0, 0], items_per_batch=1, photos_per_item=2, seed=0)


def test_random_photos_come_once_before_any_comes_again() -> None:
    dealt = np.concatenate(list(PhotoSampler(10, batch_size=4, seed=0, steps=5).epoch(0)))
    assert len(dealt) == 20
    assert Counter(dealt.tolist()) == Counter(dict.fromkeys(range(10), 2))


def test_half_a_batch_comes_from_one_group_and_half_from_another() -> None:
    groups = np.array(["a"] * 5 + ["b"] * 4 + ["c"])[LABELS].tolist()
    deal = GroupItemSampler(LABELS, groups, items_per_batch=4, photos_per_item=2, seed=0, steps=300)
    pairs: Counter[tuple[str, ...]] = Counter()
    for batch in deal.epoch(0):
        names = [groups[position] for position in batch[::2]]
        halves = sorted(set(names), key=names.index)
        assert len(halves) == 2
        assert Counter(names) == Counter({name: 1 if name == "c" else 2 for name in halves})  # c has one item
        assert len({LABELS[position] for position in batch[::2]}) == len(names)
        pairs[tuple(sorted(halves))] += 1
    assert pairs[("a", "b")] > pairs[("a", "c")] > 0
    with pytest.raises(InvalidParameter, match="at least two groups"):
        GroupItemSampler(LABELS, ["a"] * len(LABELS), items_per_batch=4, photos_per_item=2, seed=0)
    with pytest.raises(InvalidParameter, match="without one"):
        GroupItemSampler(LABELS, ["", *groups[1:]], items_per_batch=4, photos_per_item=2, seed=0)


def test_an_epoch_has_as_many_batches_as_asked() -> None:
    assert sampler().batches == len(LABELS) // 16
    longer = ItemSampler(LABELS, items_per_batch=4, photos_per_item=4, seed=0, steps=50)
    assert len(list(longer.epoch(0))) == longer.batches == 50


@pytest.mark.parametrize("count", [5, 6, 7])
def test_no_photo_is_twice_in_a_batch_where_its_item_has_k_of_them(count: int) -> None:
    labels = np.repeat(np.arange(4), count).tolist()
    deal = ItemSampler(labels, items_per_batch=4, photos_per_item=4, seed=0, steps=50)
    dealt: Counter[int] = Counter()
    for batch in deal.epoch(0):  # what is left of a pile after one batch does not fill the next
        assert len(set(batch.tolist())) == 16
        dealt.update(batch.tolist())
    assert max(dealt.values()) - min(dealt.values()) <= 2
