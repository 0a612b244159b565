"""A contract of import-linter: no module imports itself by way of others, imports for types included."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


class NoCircles(Contract):
    """No circle of modules, wherever in a module an import stands."""

    type_name = "no_circles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002
        """Find the sets of modules that all import each other, directly or by way of others."""
        circles = set()
        for module in graph.modules:
            circle = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
            if circle:
                circles.add(tuple(sorted(circle | {module})))
        return ContractCheck(kept=not circles, metadata={"circles": sorted(circles)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name the modules of each circle."""
        for circle in check.metadata["circles"]:
            output.print_error(f"{len(circle)} modules import each other: {', '.join(circle)}")
