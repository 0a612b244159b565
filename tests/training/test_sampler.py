from collections import Counter

import numpy as np
import pytest

from retrieval.errors import InvalidParameter
from training.sampler import ItemSampler

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
