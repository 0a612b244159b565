"""Searches of photos: exact distances, item distances, filters, local features, and items that are left out."""
