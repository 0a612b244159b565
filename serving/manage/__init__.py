"""The page /manage, for tending the catalogue in a browser, and its routes."""
