"""The report of a gallery: how often its searches are wrong, how that was measured, and what is assumed."""
