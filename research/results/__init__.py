"""Measured figures: one JSON file per benchmark, and the tables that the documentation shows of them.

record   a benchmark's tables with its command, date, machine and parameters; read and written as JSON
render   the tables as Markdown, put between the markers of the documentation

`python -m research.results` renders the documentation anew; a test compares both.
"""

from .record import RESULTS, Record, Table, cell, read_record

__all__ = ["RESULTS", "Record", "Table", "cell", "read_record"]
