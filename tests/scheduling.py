"""Which worker of pytest-xdist runs which test files."""

from __future__ import annotations

from typing import Any

import pytest

# Files with costly imports or fixtures, such as those of the page and of training, are at the two ends.
PACKAGES = ("tests/serving/", "tests/research/", "tests/index/", "tests/test_", "tests/retrieval/", "tests/training/")


def package_rank(nodeid: str) -> int:
    """Return the place of the test's package in the order in which the tests run."""
    return next((rank for rank, package in enumerate(PACKAGES) if nodeid.startswith(package)), len(PACKAGES) // 2)


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler for `--dist loadfile` that gives each worker neighbouring files; None for other schedulers.

    Every second worker takes files from the end, so fixtures that neighbouring files share are made in one worker.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

    class FromBothEnds(LoadFileScheduling):
        def _assign_work_unit(self, node: WorkerController) -> None:
            if int(node.gateway.id.removeprefix("gw")) % 2:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return FromBothEnds(config, log)
