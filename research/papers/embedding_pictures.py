"""Plots of embeddings: distances, utility, projections, norms, and the photos with extreme norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from retrieval.images import Preprocessing
from retrieval.metrics.consistency import utility_curves
from training.data.reader import PhotoReader

from .canvas import new_figure
from .metrics import NEGATIVES, SAMPLED, Embedded
from .runs import Job, embedded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Gallery = Mapping[tuple[str, str], Job]  # (data set, variant): job of the first seed

PAIRS = 200_000  # maximum number of distances in a histogram; more are sampled
SHOWN = 8  # photos per row


def _panels(jobs: Gallery, draw: Callable[[Axes, Embedded], None]) -> Figure:
    figure, panels = new_figure(len(jobs), width=4.0)
    for panel, ((dataset, variant), job) in zip(panels, jobs.items(), strict=True):
        panel.set_title(f"{dataset}: {variant}", fontsize=9)
        draw(panel, embedded(job))
    return figure


def pair_distances(part: Embedded, *, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return distances within and between items, for all pairs or a large sample."""
    n = len(part.unit)
    generator = np.random.default_rng(seed)
    order = np.argsort(part.labels, kind="stable")
    blocks = np.split(order, np.flatnonzero(np.diff(part.labels[order])) + 1)
    within = np.concatenate([b[np.stack(np.triu_indices(len(b), 1)).T] for b in blocks])
    if len(within) > PAIRS:
        within = within[generator.choice(len(within), PAIRS, replace=False)]
    pairs = generator.integers(n, size=(PAIRS, 2)) if n * n > PAIRS else np.stack(np.triu_indices(n, 1)).T
    between = pairs[part.labels[pairs[:, 0]] != part.labels[pairs[:, 1]]]
    return _lengths(part.unit, within), _lengths(part.unit, between)


def _lengths(unit: NDArray[np.float32], pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    cosines = np.einsum("nd,nd->n", unit[pairs[:, 0]], unit[pairs[:, 1]], dtype=np.float64)
    return np.asarray(np.sqrt(np.maximum(2 - 2 * cosines, 0)))


def _distances(jobs: Gallery) -> Figure:
    def draw(panel: Axes, part: Embedded) -> None:
        within, between = pair_distances(part)
        for values, label in ((within, "within classes"), (between, "between classes")):
            panel.hist(values, bins=80, range=(0, 2), density=True, alpha=0.6, label=label)
        panel.set_xlabel("distance")
        panel.legend(fontsize=7, loc="upper right")

    return _panels(jobs, draw)


def _utility(jobs: Gallery) -> Figure:
    def draw(panel: Axes, part: Embedded) -> None:
        ratio = NEGATIVES if part.dataset in SAMPLED else None
        points = np.linspace(0, 2, 101)
        curves = utility_curves(part.unit, part.labels, points, negatives_per_positive=ratio)
        panel.plot(points, curves.utility.T, linewidth=0.4, alpha=0.6)
        panel.plot((part.opis.d_min, part.opis.d_max), (0, 0), color="red", linewidth=4)
        panel.set(
            xlabel="distance", ylabel="utility", title=f"{panel.get_title()}, OPIS {1e3 * part.opis.value:.2f}e-3"
        )

    return _panels(jobs, draw)


def _plane(jobs: Gallery) -> Figure:
    def draw(panel: Axes, part: Embedded) -> None:
        panel.scatter(part.unit[:, 0], part.unit[:, 1], c=part.labels, cmap="tab10", s=4, alpha=0.3)
        for label in np.unique(part.labels):
            x, y = part.unit[part.labels == label][:, :2].mean(axis=0)
            panel.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->"})
        panel.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))

    return _panels(jobs, draw)


def _norms(jobs: Gallery) -> Figure:
    """Draw the norms of each variant, split into the queries that the first variant answers correctly and wrongly."""
    first: dict[str, NDArray[np.bool_]] = {}
    for (dataset, _), job in jobs.items():
        if dataset not in first:
            first[dataset] = embedded(job).right()

    def draw(panel: Axes, part: Embedded) -> None:
        right = first[part.dataset]
        norms = part.norms[part.split.queries]
        bins = np.linspace(float(norms.min()), float(norms.max()) + 1e-6, 40).tolist()
        for chosen, label in ((right, "right"), (~right, "wrong")):
            if chosen.any():
                panel.hist(norms[chosen], bins=bins, density=True, alpha=0.6, label=label)
        panel.set_xlabel("norm")
        panel.legend(fontsize=7, loc="upper right")

    return _panels(jobs, draw)


def _extremes(jobs: Gallery) -> Figure:
    """Show the training photos with the lowest norms in the upper row and the highest in the lower row."""
    (_, job) = next(iter(jobs.items()))
    part = embedded(job, train_part=True)
    order = np.argsort(part.norms, kind="stable")
    return _sheet(part, [order[:SHOWN], order[-SHOWN:]], job.settings.input_size)


def _classes_by_norm(jobs: Gallery) -> Figure:
    """Show photos of four training classes, from the lowest to the highest norm."""
    (_, job) = next(iter(jobs.items()))
    part = embedded(job, train_part=True)
    rows = []
    for label in np.random.default_rng(0).permutation(np.unique(part.labels))[:4]:
        members = np.flatnonzero(part.labels == label)
        ordered = members[np.argsort(part.norms[members], kind="stable")]
        rows.append(ordered[np.linspace(0, len(ordered) - 1, min(SHOWN, len(ordered))).round().astype(int)])
    return _sheet(part, rows, job.settings.input_size)


def _sheet(part: Embedded, rows: Sequence[NDArray[np.int64]], size: int) -> Figure:
    sight = Preprocessing(size=size)
    reader = PhotoReader(part.photos, sight, cache_bytes=0)
    height = len(rows) * size
    sheet = np.full((height, SHOWN * size, 3), 255, dtype=np.uint8)
    for number, row in enumerate(rows):
        for place, position in enumerate(row):
            block = reader.pixels([int(position)])[0]
            sheet[number * size : (number + 1) * size, place * size : (place + 1) * size] = block
    figure, (panel,) = new_figure(1, width=10.0, height=1.4 * len(rows))
    panel.imshow(sheet)
    panel.set_axis_off()
    return figure


EMBEDDING_PICTURES: Mapping[str, Callable[[Gallery], Figure]] = {
    "distances": _distances,
    "utility": _utility,
    "plane": _plane,
    "norms": _norms,
    "extremes": _extremes,
    "classes by norm": _classes_by_norm,
}
