"""Geometric verification: comparison of a query with the nearest photos by local features.

`GeometricVerifier` is the `Verifier` of `index.search.details`.
"""
