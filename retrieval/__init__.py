"""An image in, matches out, or an honest no-match."""
