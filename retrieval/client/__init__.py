"""Typed HTTP clients for `retrieval serve`, synchronous and asynchronous."""

from .client import AsyncRetrievalClient, RetrievalClient

__all__ = ["AsyncRetrievalClient", "RetrievalClient"]
