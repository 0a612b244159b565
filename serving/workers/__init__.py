"""Several processes that serve one bundle and one gallery on one port."""
