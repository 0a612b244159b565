"""Batch samplers: random photos, items, or groups of items.

Symbols: P = items of a batch, K = photos of each, C = items, n = photos.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from retrieval.catalogue.check import batches_per_epoch
from retrieval.errors import InvalidParameter


class Sampler(ABC):
    """Yields the batches of an epoch as arrays of photo positions.

    The batches depend only on (seed, epoch), so that resumed runs and all processes of a run get the same batches.
    """

    def __init__(self, photos: int, *, batch_size: int, steps: int, seed: int) -> None:
        self.batch_size = batch_size
        self.batches = batches_per_epoch(photos, batch_size, steps=steps)
        self._seed = seed

    @abstractmethod
    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Yield `batches` arrays of photo positions, (batch_size,) int64."""

    def _generator(self, number: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, number))


class PhotoSampler(Sampler):
    """Samples photos in random order, for losses that need no second photo of an item."""

    def __init__(self, photos: int, *, batch_size: int, seed: int, steps: int = 0) -> None:
        super().__init__(photos, batch_size=min(batch_size, photos), steps=steps, seed=seed)
        self._photos = photos

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Yield batches; every photo is used once before any is used again."""
        rounds = Rounds(range(self._photos), self._generator(number))
        for _ in range(self.batches):
            yield np.array(rounds.take(self.batch_size))


class ItemSampler(Sampler):
    """Samples `items_per_batch` items with `photos_per_item` photos each.

    Items are drawn in rounds of random order, so that each is used equally often. So are the photos of an item, which
    repeat within a batch only if it has fewer than K.
    """

    def __init__(
        self, labels: Sequence[int], *, items_per_batch: int, photos_per_item: int, seed: int, steps: int = 0
    ) -> None:
        self._photos = _positions(labels)
        self._items = min(items_per_batch, len(self._photos))
        self._each = photos_per_item
        super().__init__(len(labels), batch_size=self._items * self._each, steps=steps, seed=seed)

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Yield arrays of P·K photo positions, with the photos of an item next to each other."""
        generator = self._generator(number)
        photos = [Rounds(positions.tolist(), generator) for positions in self._photos]
        for items in self._item_batches(generator):
            yield np.array([position for item in items for position in photos[item].take(self._each)])

    def _item_batches(self, generator: np.random.Generator) -> Iterator[list[int]]:
        """Yield the items of each batch."""
        rounds = Rounds(range(len(self._photos)), generator)
        for _ in range(self.batches):
            yield rounds.take(self._items)


class GroupItemSampler(ItemSampler):
    """Samples each half of a batch from one group of items, so that negatives are hard.

    This is how Cakir et al. (FastAP, CVPR 2019) and arXiv 2210.01908 sample the 12 super-labels of Stanford Online
    Products. A group smaller than half a batch contributes all its items. Groups are drawn in proportion to their size.
    """

    def __init__(
        self,
        labels: Sequence[int],
        groups: Sequence[str],
        *,
        items_per_batch: int,
        photos_per_item: int,
        seed: int,
        steps: int = 0,
    ) -> None:
        super().__init__(
            labels, items_per_batch=items_per_batch, photos_per_item=photos_per_item, seed=seed, steps=steps
        )
        if len(groups) != len(labels):
            raise InvalidParameter("groups", f"hold one name per photo, {len(labels)}", len(groups))
        names = [groups[positions[0]] for positions in self._photos]
        members = {name: [item for item, its in enumerate(names) if its == name] for name in sorted(set(names))}
        if len(members) < 2 or "" in members:
            raise InvalidParameter(
                "sampler",
                "name a column that divides the training items into at least two groups",
                f"{len(members)} groups" + (", and items without one" if "" in members else ""),
                remedy="Fill the column, or use --sampler items",
            )
        self._members = list(members.values())
        self._half = self._items // 2
        if self._half < 1:
            raise InvalidParameter("items_per_batch", "be at least 2 for the sampler groups", items_per_batch)
        self.batch_size = 2 * self._half * self._each

    def _item_batches(self, generator: np.random.Generator) -> Iterator[list[int]]:
        rounds = [Rounds(members, generator) for members in self._members]
        shares = np.array([len(members) for members in self._members], dtype=float)
        for _ in range(self.batches):
            pair = generator.choice(len(rounds), size=2, replace=False, p=shares / shares.sum())
            yield [item for group in pair for item in rounds[group].take(min(self._half, len(self._members[group])))]


class Rounds:
    """Draws members in rounds of random order, so that all are drawn equally often."""

    def __init__(self, members: Sequence[int], generator: np.random.Generator) -> None:
        self._members = np.array(members)
        self._generator = generator
        self._queue: list[int] = []

    def take(self, count: int) -> list[int]:
        """Return the next `count` members, with repetitions only if there are fewer."""
        taken: list[int] = []
        used: set[int] = set()
        while len(taken) < count:
            if len(used) == len(self._members):
                used.clear()
            position = next((i for i, member in enumerate(self._queue) if member not in used), None)
            if position is None:  # all that is left of this round is taken
                self._queue += self._generator.permutation(self._members).tolist()
            else:
                taken.append(self._queue.pop(position))
                used.add(taken[-1])
        return taken


def _positions(labels: Sequence[int]) -> list[np.ndarray]:
    """Return the positions of the photos of each item, items in ascending order."""
    values = np.asarray(labels)
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order])) + 1
    if not len(starts):
        raise InvalidParameter("labels", "hold at least two items", len(np.unique(values)))
    return np.split(order, starts)
