"""Limits on the influence of one key's verdicts on a threshold."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from index.search.distance import accepts
from retrieval.bundle.bundle import Bundle
from retrieval.cli.main import group
from retrieval.errors import DataError
from retrieval.threshold.feedback import Feedback, append_feedback
from retrieval.threshold.verdicts import SHARE, feedback_cap, weigh

from .test_feedback import Shop, bundle, shop, strangers, told

pytestmark = pytest.mark.usefixtures("empty_pictures")

__all__ = ["bundle", "shop"]  # the fixtures


def attack(bundle: Bundle, count: int = 5000, distance: float = 0.05) -> list[Feedback]:
    """Return verdicts of one key that calls items of the catalogue unknown."""
    return told(bundle, distance + np.linspace(0, 1e-3, count), key="thief")


def cap(bundle: Bundle, feedback: Sequence[Feedback], trusted: Sequence[str] = ()) -> float:
    return feedback_cap(weigh(bundle, feedback, trusted=trusted), 0.05)


def test_the_last_verdict_on_an_answer_counts(bundle: Bundle) -> None:
    one = strangers(bundle, 0.0)[0]
    changed = [replace(one, verdict=verdict) for verdict in ("unknown", "right", "unknown", "wrong", "unknown")]
    tally = weigh(bundle, changed, trusted=["shop"])
    assert tally.counted == (changed[-1],)
    assert tally.dropped == {("shop", "given again later"): 4}
    assert weigh(bundle, [*changed, replace(one, verdict="right")], trusted=["shop"]).counted == ()
    by_admin = replace(one, verdict="right", key="admin")  # on the same answer
    assert weigh(bundle, [one, by_admin], trusted=["shop", "admin"]).counted == ()
    elsewhere = replace(one, asked_by="other", key="other", item_id="item-2")  # the same id, chosen by another client
    assert len(weigh(bundle, [one, elsewhere], trusted=["shop", "other"]).counted) == 2


def test_a_photo_counts_once_for_a_key_however_often_it_is_searched(bundle: Bundle) -> None:
    again = told(bundle, np.full(120, 0.1))
    assert len({feedback.request_id for feedback in again}) == 120
    tally = weigh(bundle, again, trusted=["shop"])
    assert (len(tally.counted), tally.dropped["shop", "of a photo that the key judged again"]) == (1, 119)
    older = [replace(feedback, request_id="", key="", asked_by="") for feedback in again]
    assert len(weigh(bundle, older, trusted=[""]).counted) == 1


def test_one_key_alone_moves_nothing(shop: Shop) -> None:
    with pytest.raises(DataError, match=r"all 5000 verdicts.* one key moves no threshold alone.*--trust-key 'thief'"):
        shop.point(attack(shop.bundle))
    with pytest.raises(DataError, match="without those by key 'shop'"):  # one honest verdict does not help the thief
        shop.point([*attack(shop.bundle), *strangers(shop.bundle, 0.0)[:1]])


@pytest.mark.parametrize("count", [100, 5000])
def test_a_key_among_others_does_not_tighten_beyond_them(shop: Shop, count: int) -> None:
    honest = [*strangers(shop.bundle, -0.1, "app"), *strangers(shop.bundle, -0.1, "shop")]
    alone = shop.point(honest).threshold
    assert alone < shop.bundle.threshold
    attacked = shop.point([*honest, *attack(shop.bundle, count)]).threshold
    assert attacked == pytest.approx(alone, abs=0.01)


@pytest.mark.slow
def test_a_key_hides_no_more_than_half_of_the_errors_of_others(shop: Shop) -> None:
    bundle = shop.bundle
    honest = [*strangers(bundle, -0.2, "app"), *strangers(bundle, -0.2, "shop")]
    easy = told(bundle, 1.9 + np.linspace(0, 0.05, 50_000), key="thief")
    tally = weigh(bundle, [*easy, *honest])
    assert tally.keys == {"app": 200, "shop": 200, "thief": 400}
    assert tally.dropped == {("thief", "more than those of all other keys"): 49_600}
    assert set(tally.counted) >= set(easy[-400:])  # the newest
    hidden = shop.point([*easy, *honest]).threshold
    distances = np.array([feedback.distance for feedback in honest])
    without_app = np.array([feedback.distance for feedback in honest if feedback.key == "shop"])
    assert hidden < bundle.threshold
    assert accepts(distances, hidden).mean() <= 0.05 / SHARE + 0.05  # the least of three keys is left out, too
    assert accepts(without_app, hidden).mean() <= 3 * 0.05


def test_the_fewest_verdicts_suffice_and_the_cap_is_just_below_the_first_error_too_many(bundle: Bundle) -> None:
    distances = np.arange(1, 101) / 100
    feedback = told(bundle, distances)
    assert cap(bundle, feedback, ["shop"]) == np.nextafter(0.06, 0)  # five of a hundred, and not the sixth
    with pytest.raises(DataError, match=r"99 searches of unknown items .* takes 100"):
        cap(bundle, feedback[1:], ["shop"])
    assert feedback_cap(weigh(bundle, feedback, trusted=["shop"]), 0.29) == np.nextafter(0.3, 0)  # 28.999... of 100


def test_verdicts_without_a_key_are_told_as_such(bundle: Bundle) -> None:
    nobody = [replace(feedback, key="", asked_by="") for feedback in told(bundle, np.arange(1, 5) / 10)]
    assert weigh(bundle, nobody, trusted=[""]).lines() == ["whoever asked without a key: 4 count, trusted"]
    with pytest.raises(DataError, match="all 4 verdicts on unknown items are by whoever asked without a key"):
        cap(bundle, nobody)


def test_a_trusted_key_needs_no_others(bundle: Bundle) -> None:
    feedback = strangers(bundle, -0.2)
    alone = cap(bundle, feedback, ["shop"])
    assert alone == pytest.approx(bundle.threshold - 0.2, abs=0.01)
    with pytest.raises(DataError, match="--trust-key 'shop'"):
        cap(bundle, feedback, ["shop2"])
    assert cap(bundle, [*feedback, *attack(bundle)], ["shop"]) == alone  # the thief tightens nothing
    nobody = [replace(f, key="", asked_by="") for f in feedback]
    assert cap(bundle, nobody, [""]) == alone


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(group, ["calibrate", *arguments])
    return result.exit_code, result.output + str(result.exception or "")


def test_a_dry_run_says_what_would_happen_and_writes_nothing(shop: Shop, tmp_path: Path) -> None:
    bundle, own, file = shop.bundle, shop.copy(tmp_path), tmp_path / "feedback.jsonl"
    honest = [*strangers(bundle, -0.2, "app"), *strangers(bundle, -0.2, "the 'shop'")]
    for feedback in [*honest, honest[0], *attack(bundle, 450), *told(bundle, np.array([0.3]), "wrong", "app")]:
        append_feedback(file, feedback)
    arguments = (str(bundle.path), str(own.gallery), "--feedback", str(file))
    code, output = run(*arguments, "--dry-run")
    assert code == 0, output
    assert own.point().threshold == bundle.threshold
    for words in (
        "852 verdicts, 800 of them counted:",
        "key 'app': 200 count",
        "key 'app': 1 dropped, given again later",
        "key 'app': 1 dropped, not about an unknown item",
        "key 'thief': 400 count",
        "key 'thief': 50 dropped, more than those of all other keys",
        f"The threshold goes down from {bundle.threshold:.4f} to ",
        "of 851 judged answers.",
        "Nothing was written",
    ):
        assert words in output
    assert "Next:" not in output
    code, written = run(*arguments)
    assert code == 0, written
    assert f"to {own.point().threshold:.4f}." in output


def test_the_way_out_is_a_command_that_works(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    for feedback in strangers(shop.bundle, -0.2, "the 'shop'"):
        append_feedback(file, feedback)
    arguments = (str(shop.bundle.path), str(shop.gallery), "--feedback", str(file), "--dry-run")
    code, output = run(*arguments)
    assert code != 0
    assert "200 dropped" in output  # the preview comes first
    remedy = shlex.split(output[output.index("--trust-key") :])
    code, output = run(*arguments, *remedy)
    assert code == 0, output
    assert "200 count, trusted" in output
