"""Upkeep of whole galleries: rebuilding, verification, backup and restoring."""
