from __future__ import annotations

import pytest

from research.markdown import markdown_table
from retrieval.html import figure_grid, table
from retrieval.text import text_table

HEAD = ("split", "R@1", "note")
ROWS = [("unseen", "0.9", ""), ("mixed", "0.85", "slow")]


def test_a_text_table_aligns_names_left_and_numbers_right() -> None:
    assert text_table(HEAD, ROWS) == [
        "split    R@1  note",
        "------  ----  ----",
        "unseen   0.9",
        "mixed   0.85  slow",
    ]
    assert text_table(HEAD, ROWS[:1], left=3)[2] == "unseen  0.9"


def test_a_table_of_the_heading_alone_has_a_rule() -> None:
    assert text_table(("loss", "paper"), [], left=2) == ["loss  paper", "----  -----"]


def test_a_markdown_table_has_a_rule_of_as_many_columns() -> None:
    assert markdown_table(("a", "b"), [("1", "2")]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


def test_an_html_table_names_its_rows_and_columns() -> None:
    made = table(("", "FPIR"), [("served", "5%"), ("other", "9%")], kind="rates", marks=("chosen", ""))
    assert made == (
        "<table class='rates'><thead><tr><td></td><th scope='col'>FPIR</th></tr></thead><tbody>"
        "<tr class='chosen'><th scope='row'>served</th><td>5%</td></tr>"
        "<tr><th scope='row'>other</th><td>9%</td></tr></tbody></table>"
    )
    assert table((), [("size", "160")]) == (
        "<table><tbody><tr><th scope='row'>size</th><td>160</td></tr></tbody></table>"
    )
    with pytest.raises(ValueError, match="zip"):
        table((), [("a", "b")], marks=("x", "y"))


def test_figures_stand_in_one_grid() -> None:
    made = figure_grid([("One", "<svg/>", "first"), ("Two", "<svg/>", "second")])
    first = "<figure><h2>One</h2><svg/><figcaption>first</figcaption></figure>"
    assert made.startswith(f'<div class="pair">{first}<figure>')
    assert made.endswith("second</figcaption></figure></div>")
