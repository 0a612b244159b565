"""Galleries with a bundle: what they keep, which point serves in them, and how they are measured."""
