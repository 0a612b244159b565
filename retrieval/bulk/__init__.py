"""Searches with many photos: reading them, writing the answers, and error rates where their items are known."""
