"""Searches of a gallery: exact distances, filters, and draws."""
