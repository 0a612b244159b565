"""Mutation testing: inject small faults into the modules that make decisions; the tests must detect each one."""
