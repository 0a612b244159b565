"""Inspecting galleries and installations: `retrieval audit` and `retrieval doctor`."""
