"""Galleries of simulated worlds, their draws, and searches for known and fresh unknown items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from index.draws import MOST_DRAWS, NOBODY, Draws
from index.kept_draws import OWN
from retrieval.threshold.drawn_distances import PROBE, REFERENCE, DrawnDistances

from .coverage_worlds import Floats, Vectors, World, distances_of, nearest_items

UNKNOWN, NEW, KNOWN = 20_000, 500, 500  # searches for unknown items, for those of new families, and for known items
CALIBRATION_ITEMS, CALIBRATION_PHOTOS = 60, 2  # of the bundle, where it has some
DUPLICATES = 0.05  # share of the items of a gallery that are in it under a second id
OTHER = 0.35  # length of the component that only users' photos or only gallery photos have, with a query shift
NOISE = 0.5  # photos of a fine-tuned model spread less than those of the frozen one that the worlds are fitted to
BLOCK = 500


@dataclass(frozen=True)
class Setting:
    """A kind of gallery: photos per item, items, whether half of them were fitted, and whether users' photos differ."""

    photos: int
    items: int
    trained: bool = False
    shifted: bool = False

    @property
    def name(self) -> str:
        """The name of the setting in the tables."""
        kind = "half trained" if self.trained else "untrained"
        return f"{kind}{', query shift' if self.shifted else ''}, {self.items} items, photos per item {self.photos}"


@dataclass(frozen=True)
class Simulation:
    """One gallery: its draws, and the distances of searches that show what a threshold realises."""

    draws: Mapping[str, Draws]
    unknown: Floats  # ascending distances to the nearest item, of fresh items of the same families
    new: Floats  # of fresh items of other families of the same world
    own: Floats  # distances of known items' photos to their item
    other: Floats  # and to the nearest other item
    regions: NDArray[np.int64]  # family of each fresh unknown item
    unsorted: Floats  # distances of the fresh unknown items

    def fpir(self, threshold: float) -> float:
        """Return the realised FPIR."""
        return float(np.searchsorted(self.unknown, threshold, side="right")) / len(self.unknown)

    def tpir(self, threshold: float) -> float:
        """Return the share of known items' photos whose item comes first."""
        return float(((self.own <= threshold) & (self.own < self.other)).mean())

    def exact(self, target: float) -> float:
        """Return the greatest threshold that realises at most the target."""
        return float(np.nextafter(self.unknown[int(target * len(self.unknown))], -np.inf))


def simulate(world: World, apart: float, setting: Setting, seed: int) -> Simulation:
    """Return a random gallery of a world with a setting; `apart` is how far training moves items apart."""
    generator = np.random.default_rng((seed, setting.items, setting.photos, setting.trained, setting.shifted))
    families = replace(world, noise=NOISE * world.noise).families(generator, setting.items)
    items = families.items(generator, setting.items)
    fitted = np.arange(setting.items) % 2 == 1 if setting.trained else np.zeros(setting.items, dtype=bool)
    if setting.trained:
        items = items.moved_apart(fitted, apart)
    users = OTHER if setting.shifted and seed % 2 else 0.0  # users' photos are farther away than gallery photos,
    shown = OTHER if setting.shifted and not seed % 2 else 0.0  # or nearer
    photos = families.photos(generator, items, setting.photos, other=shown)
    partners = np.full(setting.items, NOBODY)
    copies = round(DUPLICATES * setting.items)
    photos[:, :copies] = photos[:, copies : 2 * copies]  # the same files under two ids
    partners[: 2 * copies] = np.roll(np.arange(2 * copies), copies)
    draws = {OWN: _own(photos, np.flatnonzero(~fitted), partners)}
    if setting.trained or setting.shifted:
        calibration = families.items(generator, CALIBRATION_ITEMS)
        for name, other in ((PROBE, users), (REFERENCE, shown)):
            views = families.photos(generator, calibration, CALIBRATION_PHOTOS, other=other)
            draws[name] = _probes(views, photos)
    unknown = families.items(generator, UNKNOWN)
    apart_from_all = _distances(families.photos(generator, unknown, 1, other=users)[0], photos)
    others = families.world.families(generator, setting.items)
    new = _distances(others.photos(generator, others.items(generator, NEW), 1, other=users)[0], photos)
    asked = np.arange(2 * copies, setting.items)[:KNOWN]
    alike = nearest_items(families.photos(generator, items.where(asked), 1, other=users)[0], photos)
    own, other_item, _ = _split(alike, asked)
    return Simulation(draws, np.sort(apart_from_all), np.sort(new), own, other_item, unknown.families, apart_from_all)


def _split(alike: Vectors, own: NDArray[np.int64]) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return the distances to the own and to the nearest other item, and the latter, from cosines (m, n) by item."""
    rows = np.arange(len(own))
    mine = distances_of(alike[rows, own])
    alike[rows, own] = -2
    nearest = alike.argmax(axis=1)
    return mine, distances_of(alike[rows, nearest]), nearest


def _distances(queries: Vectors, photos: Vectors) -> Floats:
    blocks = (queries[start : start + BLOCK] for start in range(0, len(queries), BLOCK))
    return np.concatenate([distances_of(nearest_items(block, photos).max(axis=1)) for block in blocks])


def _own(photos: Vectors, drawn: NDArray[np.int64], partners: NDArray[np.int64]) -> Draws:
    """Return the own draws: one photo of every item before a second of any."""
    items: list[NDArray[np.int64]] = []
    distances: list[Floats] = []
    nearest: list[NDArray[np.int64]] = []
    own: list[Floats] = []
    left = MOST_DRAWS
    for number, queries in enumerate(photos):
        chosen, left = drawn[:left], left - len(drawn[:left])
        others = np.delete(photos, number, axis=0)
        for start in range(0, len(chosen), BLOCK):
            block = chosen[start : start + BLOCK]
            mine = np.full(len(block), np.inf)
            if len(others):
                mine = distances_of(nearest_items(queries[block], others)[np.arange(len(block)), block])
            alike = nearest_items(queries[block], photos)
            copied = partners[block] != NOBODY
            alike[copied, partners[block][copied]] = -2
            _, apart, rivals = _split(alike, block)
            items.append(block)
            distances.append(apart)
            nearest.append(rivals)
            own.append(mine)
    codes = np.concatenate(items)
    return _draws(codes, np.concatenate(distances), np.concatenate(nearest), np.concatenate(own), partners[codes])


def _probes(views: Vectors, photos: Vectors) -> Draws:
    """Return the draws with photos (p, n, d) of items that are not in the gallery."""
    count, size = views.shape[:2]
    alike = nearest_items(views.reshape(count * size, -1), photos)
    nearest = alike.argmax(axis=1)
    distances = distances_of(alike[np.arange(len(alike)), nearest])
    nothing = np.full(len(alike), NOBODY)
    codes = 10**6 + np.tile(np.arange(size), count)
    return _draws(codes, distances, nearest, np.full(len(alike), np.inf), nothing)


def _draws(
    items: NDArray[np.int64],
    distances: Floats,
    nearest: NDArray[np.int64],
    own: Floats,
    duplicates: NDArray[np.int64],
) -> Draws:
    seqs = np.arange(len(items))
    return Draws(
        seqs.astype(str),
        items.astype(str),
        seqs,
        distances,
        nearest,
        nearest.astype(str),
        own,
        np.full(len(items), NOBODY),
        duplicates,
        len(items),
    )


def spread_of_training(world: World, realised: float, target: float) -> float:
    """Return how far apart to move items so that leaving them out realises a given FPIR on unknown items."""
    low, high = 0.0, 1.0  # the realised FPIR grows up to about 1
    for _ in range(6):
        middle = (low + high) / 2
        rates = []
        for seed in range(4):
            generator = np.random.default_rng(seed)
            families = replace(world, noise=NOISE * world.noise).families(generator, 200)
            items = families.items(generator, 200).moved_apart(np.ones(200, dtype=bool), middle)
            photos = families.photos(generator, items, 2)
            draws = DrawnDistances.of(_own(photos, np.arange(200), np.full(200, NOBODY)))
            unknown = families.photos(generator, families.items(generator, 500), 1)[0]
            rates.append((_distances(unknown, photos) <= draws.at_share(target)).mean())
        low, high = (middle, high) if np.mean(rates) < realised else (low, middle)
    return (low + high) / 2
