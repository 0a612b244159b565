"""Inspection of galleries and installations: `retrieval audit` and `retrieval doctor`."""
