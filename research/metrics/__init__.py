"""Metrics of the papers that the product does not print: clustering, diversity and re-ranking."""
