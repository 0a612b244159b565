"""A typed HTTP client of `retrieval serve`, synchronous and asynchronous."""
