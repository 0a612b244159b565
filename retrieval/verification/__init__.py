"""Geometric verification: a second look at the nearest photos by their local features.

`GeometricVerifier` is the verifier of a verified distance (`index.verified`).
"""
