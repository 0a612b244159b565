import numpy as np
import pytest

from retrieval.bundle.density import LocalDensity
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import EvaluationProtocol, Splits
from training.evaluation.distance_selection import Whitening, choose_distance


def test_whitening_evens_out_the_axes() -> None:
    generator = np.random.default_rng(0)
    raw = generator.normal(size=(4000, 8)) * np.array([8, 4, 2, 1, 1, 0.5, 0.5, 0.25]) + np.eye(8)[0]
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    white = Whitening.fit(unit)(unit)
    assert np.linalg.norm(white, axis=1) == pytest.approx(np.ones(4000), abs=1e-6)
    assert white.mean(axis=0) == pytest.approx(np.zeros(8), abs=0.05)
    before, after = (np.linalg.cond(np.cov(vectors.T)) for vectors in (unit, white))
    assert after < before / 3


def test_a_collapsed_model_is_whitened_to_something_finite() -> None:
    same = np.repeat(np.eye(4)[:1], 10, axis=0)
    assert np.isfinite(Whitening.fit(same)(same)).all()


def test_density_is_chosen_where_crowds_differ() -> None:
    """Half of the items stand in a crowd, where even strangers are near: the plain distance must let them in."""
    generator = np.random.default_rng(1)
    centres = generator.normal(size=(80, 16))
    centres[::2] = 4 * np.eye(16)[0] + 0.6 * centres[::2]
    names = [f"i{i:02d}" for i in range(80)]
    photos, vectors = [], []
    for number, name in enumerate(names):
        for shot in range(8):
            noise = 0.12 if number % 2 == 0 else 0.45  # what is crowded is told apart by less
            vectors.append(centres[number] + noise * generator.normal(size=16))
            photos.append(Photo(path="", item_id=name, photo_id=f"{name}-{shot}", source="ab"[shot % 2]))
    unit = np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
    splits = Splits(tuple(names[:60]), tuple(names[60:]), (), ())
    choice = choose_distance(photos, unit.astype(np.float32), splits, EvaluationProtocol("a", "b"), target_fpir=0.05)
    assert isinstance(choice.distance_form, LocalDensity)
    plain = next(figures for figures in choice.tried if figures["form"] == "plain" and not figures["whitened"])
    assert choice.tried[0]["FNIR"] < plain["FNIR"] - 0.1
