"""Indexing of catalogues into galleries: decode, embed and write."""
