from __future__ import annotations

from research.markdown import markdown_table
from retrieval.text import text_table

HEAD = ("split", "R@1", "note")
ROWS = [("unseen", "0.9", ""), ("mixed", "0.85", "slow")]


def test_a_text_table_aligns_names_left_and_numbers_right() -> None:
    assert text_table(HEAD, ROWS) == ["split    R@1  note", "------  ----  ----", "unseen   0.9", "mixed   0.85  slow"]
    assert text_table(HEAD, ROWS[:1], left=3)[2] == "unseen  0.9"


def test_a_table_of_the_heading_alone_has_a_rule() -> None:
    assert text_table(("loss", "paper"), [], left=2) == ["loss  paper", "----  -----"]


def test_a_markdown_table_has_a_rule_of_as_many_columns() -> None:
    assert markdown_table(("a", "b"), [("1", "2")]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]
