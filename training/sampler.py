"""P×K batches: P items, K photos of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from retrieval.errors import InvalidParameter


class ItemSampler:
    """Deals batches of `items_per_batch` items with `photos_per_item` photos each.

    An epoch has as many batches as the photos fill. Items come round in random order, so that each is dealt
    equally often; an item's photos come round in random order too, and repeat only when it has fewer than K.
    The order depends on (seed, epoch) alone: a resumed run deals what an uninterrupted one would.
    """

    def __init__(self, labels: Sequence[int], *, items_per_batch: int, photos_per_item: int, seed: int) -> None:
        self._photos = [np.flatnonzero(np.asarray(labels) == label) for label in sorted(set(labels))]
        if len(self._photos) < 2:
            raise InvalidParameter("labels", "hold at least two items", len(self._photos))
        self._items = min(items_per_batch, len(self._photos))
        self._each = photos_per_item
        self._seed = seed
        self.batches = max(1, len(labels) // (self._items * self._each))

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Yield arrays of P·K photo positions, the photos of an item side by side."""
        generator = np.random.default_rng((self._seed, number))
        queue: list[int] = []
        piles: list[list[int]] = [[] for _ in self._photos]
        for _ in range(self.batches):
            batch: list[int] = []
            chosen: set[int] = set()
            while len(chosen) < self._items:
                if not queue:
                    queue = generator.permutation(len(self._photos)).tolist()
                item = next((i for i in queue if i not in chosen), None)
                if item is None:  # what is left in this round is in the batch already
                    queue = queue + generator.permutation(len(self._photos)).tolist()
                    continue
                queue.remove(item)
                chosen.add(item)
                batch.extend(self._draw(piles, item, generator))
            yield np.array(batch)

    def _draw(self, piles: list[list[int]], item: int, generator: np.random.Generator) -> list[int]:
        drawn: list[int] = []
        while len(drawn) < self._each:
            if not piles[item]:
                fresh = generator.permutation(self._photos[item]).tolist()
                piles[item] = sorted(fresh, key=lambda photo: photo not in drawn)  # drawn ones come last
            drawn.append(piles[item].pop())
        return drawn
