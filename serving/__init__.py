"""Matches over HTTP and in a browser."""
