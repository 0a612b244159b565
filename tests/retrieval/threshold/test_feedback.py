import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from retrieval.bundle.bundle import CALIBRATION, Bundle
from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter
from retrieval.result import Match, SearchResult
from retrieval.threshold.calibrate import calibrate
from retrieval.threshold.feedback import Feedback, append_feedback, feedback_cap, feedback_on, read_feedback
from retrieval.threshold.recalibrate import Searches, pack_searches, recalibrate

from ...world import make_bundle
from .test_gallery_size import searches, simulated


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    vectors, labels = simulated(300, 4, seed=0)
    scores = searches(vectors, labels, np.arange(300), 4)
    count = len(scores.own)
    packed = pack_searches(Searches(scores, None, np.arange(count).astype(str), np.ones(count, np.float32)))
    return make_bundle(
        tmp_path_factory.mktemp("feedback") / "bundle", point=calibrate(scores), files={CALIBRATION: packed}
    )


def told(bundle: Bundle, distances: np.ndarray, verdict: str = "unknown") -> list[Feedback]:
    ids = {"embedding_id": bundle.embedding_id, "measure": bundle.measure.key, "bundle_id": bundle.bundle_id}
    return [Feedback(verdict, "match", "item-1", float(d), gallery_items=300, **ids) for d in distances]


def strangers(bundle: Bundle, shift: float) -> list[Feedback]:
    """Return 200 searches of unknown items, one of twenty of which lies below the threshold plus `shift`."""
    return told(bundle, bundle.threshold + shift + np.linspace(-0.05, 0.95, 200))


def test_too_many_answers_to_strangers_tighten(bundle: Bundle, tmp_path: Path) -> None:
    tighter = recalibrate(bundle, tmp_path / "tighter", feedback=strangers(bundle, -0.2))
    assert tighter.threshold == pytest.approx(bundle.threshold - 0.2, abs=0.02)
    assert tighter.threshold < bundle.threshold - 0.19
    assert tighter.operating_point.status == "certified"  # what held at a larger threshold holds here
    later = recalibrate(tighter, tmp_path / "later", gallery_size=100)
    assert later.threshold == tighter.threshold  # and it is not forgotten


def test_few_answers_to_strangers_loosen_nothing_unless_asked(bundle: Bundle, tmp_path: Path) -> None:
    kept = recalibrate(bundle, tmp_path / "kept", feedback=strangers(bundle, 0.2))
    assert kept.threshold == bundle.threshold
    loose = recalibrate(bundle, tmp_path / "loose", feedback=strangers(bundle, 0.05), accept_biased=True)
    assert bundle.threshold < loose.threshold <= bundle.threshold + 0.06
    assert loose.operating_point.status == "estimated"


def test_right_no_matches_count_and_other_models_do_not(bundle: Bundle) -> None:
    unknown = strangers(bundle, 0.0)
    quiet = [replace(f, verdict="right", decision="no_match") for f in unknown[50:]] + unknown[:50]
    assert feedback_cap(bundle, quiet, 0.05) == feedback_cap(bundle, unknown, 0.05)
    noise = [replace(f, embedding_id="other") for f in unknown] + told(bundle, np.full(500, 0.01), verdict="wrong")
    assert feedback_cap(bundle, [*noise, *unknown], 0.05) == feedback_cap(bundle, unknown, 0.05)
    with pytest.raises(DataError, match=r"99 searches of unknown items.* takes 100"):
        feedback_cap(bundle, [*noise, *unknown[:99]], 0.05)


def test_a_verdict_survives_its_file(bundle: Bundle, tmp_path: Path) -> None:
    nearest = Match("item-3", "photo-3", 0.4)
    result = SearchResult((nearest,), "match", "", 0.5, 0.4, 1.0, nearest, bundle.bundle_id, 7)
    made = feedback_on(result, "unknown", bundle, gallery_items=12)
    assert made.of_unknown_item
    for feedback in (made, replace(made, verdict="right")):
        append_feedback(tmp_path / "feedback.jsonl", feedback)
    again = read_feedback(tmp_path / "feedback.jsonl")
    assert again == [made, replace(made, verdict="right")]
    assert [f.of_unknown_item for f in again] == [True, False]
    with pytest.raises(InvalidParameter, match="right, wrong, unknown"):
        feedback_on(result, "nonsense", bundle, gallery_items=12)


@pytest.mark.parametrize("line", ["not JSON", "{}", "[1]", json.dumps({"verdict": "right"})])
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "feedback.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="line 1 is no feedback"):
        read_feedback(tmp_path / "feedback.jsonl")


def test_the_command_says_what_the_feedback_did(bundle: Bundle, tmp_path: Path) -> None:
    for feedback in strangers(bundle, -0.2):
        append_feedback(tmp_path / "feedback.jsonl", feedback)
    arguments = ["recalibrate", str(bundle.path), "-o", str(tmp_path / "new")]
    result = CliRunner().invoke(group, [*arguments, "--feedback", str(tmp_path / "feedback.jsonl")])
    assert result.exit_code == 0, result.output
    assert f"The feedback tightened the threshold, from {bundle.threshold:.4f} to" in result.output
