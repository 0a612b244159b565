"""Approximate nearest neighbours: index kinds, candidate search and what an approximate index loses."""
