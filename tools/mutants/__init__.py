"""Mutation testing: small faults are put into the modules that decide, and the tests must notice each."""
