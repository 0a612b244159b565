"""A typed HTTP client of `retrieval serve`, synchronous and asynchronous.

Needs httpx: pip install '.[client]'.
"""

from .client import Answer, ApiError, AsyncRetrievalClient, RetrievalClient, Unreachable

__all__ = ["Answer", "ApiError", "AsyncRetrievalClient", "RetrievalClient", "Unreachable"]
