"""Photos with labels in, bundles out."""
