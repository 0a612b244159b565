"""The open-set loss equals loops and numbers checked by hand; its folds, its thresholds, its edge cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from research.losses import OpenSet
from research.losses.open_set import draw_folds, open_set
from retrieval.errors import InvalidParameter

from ...training.losses.golden import F64

SCALES = {"similarity_scale": 9.0, "rank_scale": 1.5, "threshold_scale": 9.0}


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def terms(vectors: Tensor, labels: Tensor, folds: list[int], **changed: float) -> tuple[float, float]:
    first, second = open_set(vectors, labels, torch.tensor(folds), thresholds=10**6, **(SCALES | changed))
    return first.item(), second.item()


def by_loops(vectors: Tensor, labels: Tensor, folds: list[int]) -> tuple[float, float]:
    """Return both terms photo by photo, by METHODS' formulas."""
    unit = [[x / math.hypot(*row) for x in row] for row in vectors.tolist()]
    photos: dict[int, list[list[float]]] = {}
    for label, row in zip(labels.tolist(), unit, strict=True):
        photos.setdefault(label, []).append(row)
    names = sorted(photos)
    fold_of = dict(zip(names, folds, strict=True))
    first, second = [], []
    for fold in sorted(set(folds)):
        known = [name for name in names if fold_of[name] != fold]
        unknown = [row for name in names if fold_of[name] == fold for row in photos[name]]
        halves = {name: math.ceil(len(photos[name]) / 2) for name in known}
        gallery = {name: [sum(column) / halves[name] for column in zip(*photos[name][: halves[name]], strict=True)]
                   for name in known}  # fmt: skip
        mated = [(name, row) for name in known for row in photos[name][halves[name] :]]
        cuts = []
        lowered = 0.0
        for row in unknown:
            distances = [math.dist(row, gallery[name]) for name in known]
            scores = [1 / (1 + d) for d in distances]
            total = sum(math.exp(-d) for d in distances)
            lowered += sum(math.exp(-d) / total * s for d, s in zip(distances, scores, strict=True))
            cuts += scores
        second.append(lowered / len(unknown))
        hits = []
        for name, row in mated:
            own = 1 / (1 + math.dist(row, gallery[name]))
            rank = sum(sigmoid(9.0 * (1 / (1 + math.dist(row, gallery[other])) - own)) for other in known)
            hits += [sigmoid(1.5 * (1 - rank)) * sigmoid(9.0 * (own - cut)) for cut in cuts]
        if hits:
            first.append(1 - sum(hits) / len(hits))
    return sum(first) / max(1, len(first)), sum(second) / len(second)


def uneven(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return photos of labels with 4, 1, 3, 2 and 5 photos, shuffled, with labels that are no numbers from 0."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([7, 7, 7, 7, 2, 9, 9, 9, 4, 4, 30, 30, 30, 30, 30])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    return torch.randn(len(labels), 6, generator=generator, dtype=F64), labels


@pytest.mark.parametrize("folds", [[0, 1, 2, 3, 0], [1, 1, 0, 0, 0], [4, 0, 1, 3, 2]])
def test_the_terms_equal_loops_over_photos(folds: list[int]) -> None:
    vectors, labels = uneven()
    assert terms(vectors, labels, folds) == pytest.approx(by_loops(vectors, labels, folds), rel=1e-12)


def test_six_photos_by_hand() -> None:
    """Two labels of one fold, each photo on an axis, and one unknown label in between.

    Labels 0 and 1 are shown by (1, 0) and (0, 1), and asked for by the same vectors; label 2, alone in its fold, has
    both photos at 45 degrees. Folds {0, 1} and {2}.
    """
    vectors = torch.tensor([[1.0, 0], [2, 0], [0, 1], [0, 3], [1, 1], [1, 1]], dtype=F64)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    near, far = 1 / (1 + math.sqrt(2 - math.sqrt(2))), 1 / (1 + math.sqrt(2))  # 45 and 90 degrees: 0.5665 and 0.4142
    own = 1 / 1.001  # distances below 0.001 count as 0.001
    # unknown: label 2; both its photos are as near to either vector, and a query's rank has its own ½
    first = sigmoid(1.5 * (1 - 0.5 - sigmoid(9 * (far - own)))) * sigmoid(9 * (own - near))
    # unknown: labels 0 and 1; only the vector of label 2 is there, so its photo has rank ½
    second = sigmoid(1.5 * 0.5) * sigmoid(9 * (own - near))
    assert (near, far, first, second) == pytest.approx((0.5665, 0.4142, 0.6640, 0.6656), abs=6e-5)
    got = terms(vectors, labels, [0, 0, 1])
    assert got == pytest.approx((1 - (first + second) / 2, near), rel=1e-9)


def test_each_fold_is_a_label_when_there_are_fewer_labels_than_folds() -> None:
    assert sorted(draw_folds(3, 4).tolist()) == [0, 1, 2]
    assert sorted(draw_folds(10, 4).bincount().tolist()) == [2, 2, 3, 3]


def test_the_first_term_is_zero_without_a_label_of_two_photos() -> None:
    vectors = torch.randn(5, 6, dtype=F64, requires_grad=True)
    first, second = open_set(vectors, torch.arange(5), torch.tensor([0, 1, 2, 3, 0]), thresholds=1000, **SCALES)
    assert first.item() == 0
    assert second.item() > 0
    assert torch.autograd.grad(first + second, vectors)[0].abs().max() > 0


def test_one_label_gives_a_loss_and_a_gradient_of_zero() -> None:
    vectors = torch.randn(4, 6, requires_grad=True)
    value = OpenSet()(vectors, torch.full((4,), 3))
    value.backward()
    assert value.item() == 0
    assert not vectors.grad.any()


def test_the_loss_adds_the_weighted_threshold_term() -> None:
    vectors, labels = uneven()
    torch.manual_seed(5)
    value = OpenSet(threshold_weight=2.0)(vectors, labels).item()
    torch.manual_seed(5)
    first, second = terms(vectors, labels, draw_folds(5, 4).tolist())
    assert value == pytest.approx(first + 2 * second, rel=1e-12)


def test_the_order_of_photos_matters_only_within_their_labels() -> None:
    vectors, labels = uneven()
    order = labels.argsort(stable=True, descending=True)  # keeps the order within each label
    folds = [3, 1, 0, 2, 1]
    assert terms(vectors[order], labels[order], folds) == pytest.approx(terms(vectors, labels, folds), rel=1e-12)
    assert terms(vectors.flip(0), labels.flip(0), folds) != pytest.approx(terms(vectors, labels, folds), rel=1e-6)


def test_gradients_are_those_of_finite_differences_for_given_folds() -> None:
    vectors, labels = uneven(1)
    folds = torch.tensor([0, 1, 2, 3, 0])

    def total(v: Tensor) -> Tensor:
        first, second = open_set(v, labels, folds, thresholds=10**6, **SCALES)
        return first + 4 * second

    assert torch.autograd.gradcheck(total, (vectors.requires_grad_(),))


def test_drawn_thresholds_depend_on_the_seed_and_average_to_all_of_them() -> None:
    vectors, labels = uneven()
    folds = torch.tensor([0, 1, 2, 3, 0])

    def drawn(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        return open_set(vectors, labels, folds, thresholds=4, generator=generator, **SCALES)[0].item()

    values = [drawn(seed) for seed in range(400)]
    assert drawn(0) == values[0]
    assert len(set(values)) > 390
    spread = torch.tensor(values).std().item() / 20
    assert sum(values) / 400 == pytest.approx(terms(vectors, labels, folds.tolist())[0], abs=4 * spread)


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [({"similarity_scale": 0.0}, "similarity_scale"), ({"threshold_weight": -1.0}, "threshold_weight"),
     ({"folds": 1}, "folds"), ({"thresholds": 0}, "thresholds")],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused(arguments: dict, parameter: str) -> None:
    with pytest.raises(InvalidParameter, match=parameter):
        OpenSet(**arguments)
