"""Measured figures: one JSON file per benchmark, and the tables in the documentation.

record      tables of a benchmark with its command, date, commit, machine and parameters, as JSON
render      tables as Markdown, inserted between markers in the documentation
sentences   words, counts and ranges for sentences, and which paragraphs are older than their record

`python -m research.results` renders the documentation again and names stale paragraphs; tests compare both.
"""

from .record import RESULTS, Record, Table, cell, read_record

__all__ = ["RESULTS", "Record", "Table", "cell", "read_record"]
