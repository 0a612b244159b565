import re
from html.parser import HTMLParser

import numpy as np
import pytest

from retrieval.metrics.consistency import opis, utility_curves
from retrieval.metrics.identification import SearchScores
from retrieval.reports.bundle_report import ReportData, render_report
from tests.retrieval.measuring.simulated import point_of, searches, simulated


class Balanced(HTMLParser):
    """Counts open and closed elements, and notes what is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def scores() -> SearchScores:
    vectors, labels = simulated(300, 4, seed=0)
    found = searches(vectors, labels, np.arange(300), 4)
    names = np.array([f"<b>item {label}" for label in found.labels])
    return SearchScores(names, found.own, found.impostor, found.gallery_items)


def test_the_page_is_whole_and_loads_nothing(scores: SearchScores) -> None:
    vectors, labels = simulated(30, 4, seed=1)
    page = render_report(
        ReportData(
            point_of(scores),
            scores,
            pair_curves=utility_curves(vectors, labels, np.linspace(0.1, 2, 20)),
            pair_opis={far: opis(vectors, labels, far_range=far) for far in ((0.01, 0.1), (0.001, 0.01))},
            photos=lambda item: [b"\xff\xd8 of " + item.encode()],
        )
    )
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert page.count("<svg") == 4
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "<script" not in page
    assert "<b>item" not in page  # names are escaped
    assert "epsilon-OPIS" in parser.text
    alike = point_of(scores).rates.consistency
    assert alike is not None
    told = (
        f"OPIS, the variance of the items' utility, is {alike['opis']:.4f}; it would be {alike['opis_by_chance']:.4f}"
    )
    assert told in parser.text
    assert f"{alike['worse_half']:.1%}, and {alike['never_found']:.1%} of the items are never found" in parser.text
    assert page.count("data:image/jpeg") == 6


@pytest.mark.usefixtures("empty_pictures")
def test_the_status_is_said_in_words(scores: SearchScores) -> None:
    certified = render_report(ReportData(point_of(scores, certify=True), scores))
    assert "<b>Certified.</b> At most 5.0% of photos of unknown items" in certified
    few = scores.where(np.isin(scores.labels, np.unique(scores.labels)[:25]))
    estimated = render_report(ReportData(point_of(few), few))
    assert "<b>Estimated.</b>" in estimated
    assert "At least 34 more independent items" in estimated
    assert "Set on half of the calibration" in estimated
