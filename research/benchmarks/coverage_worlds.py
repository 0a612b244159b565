"""Simulated worlds whose families, photos and hubs resemble those of real features.

An item belongs to a family. Family centres are normal in `dim` dimensions with variances that fall as a power; items
lie around the centre of their family and photos around their item. Families differ in size and tightness, and items in
the spread of their photos. All vectors have length 1. `fit` chooses the parameters whose statistics of leave-one-out
searches (`statistics`) are nearest to those of real features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]
EXTRA = 8  # dimensions in which users' photos differ from gallery photos
STEPS = 10


@dataclass(frozen=True)
class World:
    """Parameters of a population of items."""

    dim: int
    decay: float  # the variance of dimension j is proportional to j ** -decay
    family_items: float  # items per family, on average
    family_share: float  # of the variance of items, between families
    tightness: float  # standard deviation of the logarithm of a family's spread
    noise: float  # standard deviation of photos, relative to that of items
    noise_spread: float  # standard deviation of the logarithm of an item's noise

    @classmethod
    def draw(cls, generator: np.random.Generator) -> World:
        """Return random parameters, to compare in a fit."""
        return cls(
            dim=int(generator.integers(6, 49)),
            decay=float(generator.uniform(0, 1.2)),
            family_items=float(np.exp(generator.uniform(np.log(2), np.log(20)))),
            family_share=float(generator.uniform(0, 0.9)),
            tightness=float(generator.uniform(0, 1)),
            noise=float(np.exp(generator.uniform(np.log(0.15), np.log(2)))),
            noise_spread=float(generator.uniform(0, 0.6)),
        )

    def families(self, generator: np.random.Generator, items: int) -> Families:
        """Return the families of a catalogue of about this many items."""
        count = max(2, round(items / self.family_items))
        sizes = np.exp(generator.normal(size=count))
        scale = np.arange(1, self.dim + 1, dtype=np.float64) ** (-self.decay / 2)
        scale /= np.linalg.norm(scale)
        centres = generator.normal(size=(count, self.dim)) * scale * np.sqrt(self.family_share)
        spreads = np.exp(self.tightness * generator.normal(size=count)) * np.sqrt(1 - self.family_share)
        return Families(self, centres, spreads, sizes / sizes.sum(), scale)

    def to_dict(self) -> dict[str, float]:
        """Return the parameters, rounded."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Items:
    """Items of a population: means (n, d), noise (n,) and families (n,)."""

    means: Floats
    noise: Floats
    families: NDArray[np.int64]

    def where(self, chosen: NDArray[np.generic]) -> Items:
        """Return the chosen items."""
        return Items(self.means[chosen], self.noise[chosen], self.families[chosen])

    def moved_apart(self, chosen: NDArray[np.bool_], by: float) -> Items:
        """Return the items after training: each chosen one is moved away from the nearest of them, STEPS times."""
        means = self.means.copy()
        moved = means[chosen]
        lengths = np.linalg.norm(moved, axis=1, keepdims=True)
        for _ in range(STEPS):
            moved /= np.linalg.norm(moved, axis=1, keepdims=True)
            alike = moved @ moved.T
            np.fill_diagonal(alike, -2)
            away = moved - moved[alike.argmax(axis=1)]
            moved = moved + by / STEPS * away / np.linalg.norm(away, axis=1, keepdims=True)
        means[chosen] = moved / np.linalg.norm(moved, axis=1, keepdims=True) * lengths
        return Items(means, self.noise, self.families)


@dataclass(frozen=True)
class Families:
    """The families of one world: k centres (k, d), spreads (k,) and shares of the items (k,)."""

    world: World
    centres: Floats
    spreads: Floats
    shares: Floats
    scale: Floats  # (d,) standard deviations

    def items(self, generator: np.random.Generator, count: int) -> Items:
        """Return random items."""
        chosen = generator.choice(len(self.shares), size=count, p=self.shares)
        offsets = generator.normal(size=(count, self.world.dim)) * self.scale * self.spreads[chosen, None]
        noise = self.world.noise * np.exp(self.world.noise_spread * generator.normal(size=count))
        return Items(self.centres[chosen] + offsets, noise, chosen)

    def photos(self, generator: np.random.Generator, items: Items, count: int, *, other: float = 0.0) -> Vectors:
        """Return photos (count, n, d + EXTRA) of length 1; `other` is the length of a component that each has alone."""
        size = (count, *items.means.shape)
        photos = items.means + items.noise[:, None] * self.scale * generator.normal(size=size)
        photos /= np.linalg.norm(photos, axis=2, keepdims=True)
        extra = other * directions(generator, (count, len(items.noise)))
        whole = np.concatenate([photos, extra], axis=2)
        return np.asarray(whole / np.linalg.norm(whole, axis=2, keepdims=True), dtype=np.float32)


def directions(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return random directions (..., EXTRA)."""
    values = generator.normal(size=(*shape, EXTRA))
    return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True))


def nearest_items(queries: Vectors, photos: Vectors) -> Vectors:
    """Return the cosine of each query (m, d) and the nearest of the photos (p, n, d) of each item, (m, n)."""
    nearest = queries @ photos[0].T
    for others in photos[1:]:
        np.maximum(nearest, queries @ others.T, out=nearest)
    return np.asarray(nearest)


def distances_of(cosines: NDArray[np.floating]) -> Floats:
    """Return plain distances."""
    return np.sqrt(np.maximum(2 - 2 * cosines.astype(np.float64), 0))


def statistics(photos: Vectors) -> Floats:
    """Return statistics of searches with each photo (p, n, d) of n items, its item left out.

    In this order: spread of the log distances, its share between items, and how far the lowest twentieth is below the
    median; share of photos that the tenth of items returned most attracts; share of items that are nearest to each
    other; share of photos in the lowest twentieth where the nearest item has one, and in the tenth of items with most;
    and the log distance to the own item, relative to that to another one.
    """
    count, size = photos.shape[:2]
    here = np.arange(size)
    own, logs, nearest = np.empty((count, size)), np.empty((count, size)), np.empty((count, size), np.int64)
    for number, queries in enumerate(photos):
        own[number] = nearest_items(queries, np.delete(photos, number, axis=0))[here, here]
        alike = nearest_items(queries, photos)
        alike[here, here] = -2
        nearest[number] = alike.argmax(axis=1)
        logs[number] = np.log(np.maximum(distances_of(alike[here, nearest[number]]), 1e-3))
    low = np.quantile(logs, 0.05)
    hits = (logs <= low).mean(axis=0)
    drawn = np.sort(np.bincount(nearest.ravel(), minlength=size))[::-1]
    tenth = max(1, size // 10)
    return np.array(
        [
            logs.std(),
            logs.mean(axis=0).var() / logs.var(),
            low - np.median(logs),
            drawn[:tenth].sum() / logs.size,
            (nearest[0][nearest[0]] == here).mean(),
            (hits * hits[nearest[0]]).sum() / hits.sum(),
            np.sort(hits)[::-1][:tenth].mean(),
            np.median(np.log(np.maximum(distances_of(own), 1e-3))) - np.median(logs),
        ]
    )


@dataclass(frozen=True)
class Fit:
    """The world whose statistics are nearest to those of real features."""

    world: World
    statistics: Floats
    real: Floats


def fit(real: Sequence[Vectors], *, trials: int, seed: int = 0) -> list[Fit]:
    """Return the nearest of `trials` random worlds to each of some sets of real photos (p, n, d), all with p photos."""
    generator = np.random.default_rng(seed)
    photos, items = len(real[0]), int(np.median([vectors.shape[1] for vectors in real]))
    worlds = [World.draw(generator) for _ in range(trials)]
    simulated = []
    for world in worlds:
        families = world.families(generator, items)
        simulated.append(statistics(families.photos(generator, families.items(generator, items), photos)))
    values, found = np.array(simulated), []
    wanted = np.array([statistics(vectors) for vectors in real])
    scale = np.maximum(wanted.std(axis=0), 0.02)
    for target in wanted:
        best = int((((values - target) / scale) ** 2).sum(axis=1).argmin())
        found.append(Fit(worlds[best], values[best], target))
    return found
