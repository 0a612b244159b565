"""Geometric verification: comparison of a query with the nearest photos by local features.

`GeometricVerifier` is the verifier of a verified distance (`index.search.verified`).
"""
