"""The promise for vectors that already lie somewhere: thresholds with measured error rates, and decisions by them."""
