"""Galleries searched with a bundle: what they keep, the point that serves in them, and their measurement."""
