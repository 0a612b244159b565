"""The report of a gallery: its error rates, how they were measured, and what they assume."""
