"""Training of embedders on labelled photos, and their export as bundles."""
