import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from retrieval.bundle.bundle import CALIBRATION, Bundle
from retrieval.bundle.calibration_set import CalibrationSet
from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter
from retrieval.result import Match, SearchResult
from retrieval.threshold.calibrate import calibrate
from retrieval.threshold.feedback import MAX_BYTES, Feedback, append_feedback, feedback_on, read_feedback
from retrieval.threshold.recalibrate import recalibrate
from retrieval.threshold.verdicts import feedback_caps, weigh

from ...world import make_bundle
from .test_gallery_size import searches, simulated

pytestmark = pytest.mark.usefixtures("empty_pictures")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    vectors, labels = simulated(300, 4, seed=0)
    scores = searches(vectors, labels, np.arange(300), 4)
    count = len(scores.own)
    packed = CalibrationSet(scores, None, np.arange(count).astype(str), np.ones(count, np.float32)).pack()
    return make_bundle(
        tmp_path_factory.mktemp("feedback") / "bundle", point=calibrate(scores), files={CALIBRATION: packed}
    )


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the report's pictures out, which take seconds."""
    monkeypatch.setattr("retrieval.threshold.recalibrate.render_report", lambda data: "")


def told(bundle: Bundle, distances: np.ndarray, verdict: str = "unknown", key: str = "shop") -> list[Feedback]:
    ids = {
        "embedding_id": bundle.embedding_id,
        "distance_form": bundle.distance_form.key,
        "bundle_id": bundle.bundle_id,
    }
    return [
        Feedback(verdict, "match", "item-1", float(d), 300, **ids, request_id=f"{key}-{n}-{d}", key=key, asked_by=key)
        for n, d in enumerate(distances)
    ]


def strangers(bundle: Bundle, shift: float, key: str = "shop") -> list[Feedback]:
    """Return 200 searches of unknown items, one of twenty of which lies below the threshold plus `shift`."""
    return told(bundle, bundle.threshold + shift + np.linspace(-0.05, 0.95, 200), key=key)


def caps(bundle: Bundle, feedback: list[Feedback], *trusted: str) -> tuple[float, float]:
    return feedback_caps(weigh(bundle, feedback, trusted=trusted), 0.05)


def test_too_many_answers_to_strangers_tighten(bundle: Bundle, tmp_path: Path) -> None:
    tighter = recalibrate(bundle, tmp_path / "tighter", feedback=strangers(bundle, -0.2), trusted=["shop"])
    assert tighter.threshold == pytest.approx(bundle.threshold - 0.2, abs=0.02)
    assert tighter.threshold < bundle.threshold - 0.19
    assert tighter.operating_point.status == "certified"  # what held at a larger threshold holds here
    later = recalibrate(tighter, tmp_path / "later", gallery_size=100)
    assert later.threshold == tighter.threshold  # and it is not forgotten


def test_later_feedback_loosens_no_cap(bundle: Bundle, tmp_path: Path) -> None:
    """The first verdicts tighten by 0.2; later ones that would allow 0.1 more, or anything at all, change nothing."""
    tight = recalibrate(bundle, tmp_path / "tight", feedback=strangers(bundle, -0.2), trusted=["shop"])
    for name, shift in (("later", -0.1), ("lenient", 0.3)):
        later = recalibrate(tight, tmp_path / name, feedback=strangers(bundle, shift), trusted=["shop"])
        assert later.threshold == tight.threshold
        assert later.operating_point.evidence["feedback_cap"] == tight.operating_point.evidence["feedback_cap"]
    tighter = recalibrate(tight, tmp_path / "tighter", feedback=strangers(bundle, -0.3), trusted=["shop"])
    assert tighter.threshold < tight.threshold - 0.09


def test_few_answers_to_strangers_loosen_nothing_unless_asked(bundle: Bundle, tmp_path: Path) -> None:
    kept = recalibrate(bundle, tmp_path / "kept", feedback=strangers(bundle, 0.2), trusted=["shop"])
    assert kept.threshold == bundle.threshold
    feedback = strangers(bundle, 0.05)
    loose = recalibrate(bundle, tmp_path / "loose", feedback=feedback, trusted=["shop"], accept_biased=True)
    assert bundle.threshold < loose.threshold <= bundle.threshold + 0.06
    assert loose.operating_point.status == "estimated"


def test_right_no_matches_count_and_other_models_do_not(bundle: Bundle) -> None:
    unknown = strangers(bundle, 0.0)
    quiet = [replace(f, verdict="right", decision="no_match") for f in unknown[50:]] + unknown[:50]
    expected = caps(bundle, unknown, "shop")
    assert caps(bundle, quiet, "shop") == expected
    noise = [replace(f, embedding_id="other") for f in unknown] + told(bundle, np.linspace(0.01, 0.02, 500), "wrong")
    noise = [replace(f, request_id=f"{f.request_id}-noise") for f in noise]
    assert caps(bundle, [*noise, *unknown], "shop") == expected
    with pytest.raises(DataError, match=r"99 searches of unknown items.* takes 100"):
        caps(bundle, [*noise, *unknown[:99]], "shop")


def test_a_verdict_survives_its_file(bundle: Bundle, tmp_path: Path) -> None:
    nearest = Match("item-3", "photo-3", 0.4)
    result = SearchResult((nearest,), "match", "", 0.5, 0.4, 1.0, nearest, bundle.bundle_id, 7)
    made = feedback_on(result, "unknown", bundle, gallery_items=12)
    assert made.of_unknown_item
    for feedback in (made, replace(made, verdict="right")):
        append_feedback(tmp_path / "feedback.jsonl", feedback)
    assert stat.S_IMODE((tmp_path / "feedback.jsonl").stat().st_mode) == 0o600
    again = read_feedback(tmp_path / "feedback.jsonl")
    assert again == [made, replace(made, verdict="right")]
    assert [f.of_unknown_item for f in again] == [True, False]
    with pytest.raises(InvalidParameter, match="right, wrong, unknown"):
        feedback_on(result, "nonsense", bundle, gallery_items=12)


LINE = {
    "verdict": "right",
    "decision": "match",
    "item_id": "i",
    "distance": 0.5,
    "gallery_items": 3,
    "embedding_id": "e",
    "distance_form": "plain",
    "bundle_id": "b",
}
HOSTILE = [
    {"distance": float("nan")},
    {"distance": float("-inf")},
    {"distance": "0.5"},
    {"distance": True},
    {"distance": None},
    {"distance": 10**400},
    {"gallery_items": -1},
    {"gallery_items": 1.5},
    {"verdict": ["right"]},
    {"decision": "perhaps"},
    {"key": None},
    {"key": {}},
    {"request_id": 7},
    {"item_id": "a" * 20_000},
    {"note": float("nan")},  # a field that is not read
]


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "{}",
        "[1]",
        json.dumps({"verdict": "right"}),
        "[" * 10_000,
        '{"distance": ' + "9" * 5000 + "}",
        "\xff",
        *[json.dumps({**LINE, **wrong}) for wrong in HOSTILE],
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "feedback.jsonl").write_bytes(json.dumps(LINE).encode() + b"\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(DataError, match="line 2 is no feedback") as refused:
        read_feedback(tmp_path / "feedback.jsonl")
    assert len(str(refused.value)) < 1000


def test_a_line_of_an_older_server_is_read(tmp_path: Path) -> None:
    (tmp_path / "feedback.jsonl").write_text(" \t\n" + json.dumps(LINE) + "\n\n")  # and empty lines are none
    (line,) = read_feedback(tmp_path / "feedback.jsonl")
    assert (line.distance, line.request_id, line.key, line.asked_by) == (0.5, "", "", "")


def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(DataError, match=r"is no file|cannot be read"):
            read_feedback(place)
    file = tmp_path / "feedback.jsonl"
    with file.open("wb") as large:
        large.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match="more than"):
        read_feedback(file)
    with pytest.raises(DataError, match="is full"):
        append_feedback(file, Feedback(**LINE))


def test_the_command_says_what_the_feedback_did(bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    for feedback in strangers(bundle, -0.2):
        append_feedback(file, feedback)
    arguments = ["recalibrate", str(bundle.path), "-o", str(tmp_path / "new")]
    result = CliRunner().invoke(group, [*arguments, "--feedback", str(file), "--trust-key", "shop"])
    assert result.exit_code == 0, result.output
    assert f"The feedback tightens the threshold, from {bundle.threshold:.4f} to" in result.output
