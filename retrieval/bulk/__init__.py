"""Searches with many photos: reading them, writing the answers, and error rates if their items are known."""
