"""HTTP server: search endpoint, search page and operations."""
