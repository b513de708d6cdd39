"""Every remedy that is called enough works when it is applied, not only the first one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

from deaths import DEATHS, Death  # noqa: E402
from remedy_promises import Followed, follow, summary  # noqa: E402
from running import RunningServer  # noqa: E402

NAMES = ("inside backward", "the optimizer's first step", "a data set on the device")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.xdist_group("deaths")
@pytest.mark.parametrize("death", [death for death in DEATHS if death.name in NAMES], ids=lambda death: death.name)
def test_all_remedies_that_are_called_enough_work(death: Death, tmp_path: Path, emulated_gpu: None) -> None:
    """On a device of the size that a step needs, the second step of the first of these found its memory in pieces."""
    server = RunningServer(tmp_path / "server")
    try:
        found = list(follow(death, server.url, tmp_path / "runs"))
    finally:
        server.stop()
    assert found
    assert [one.what for one in found if not one.survived] == []
    assert [one.row() for one in found if one.is_kept is False] == []


def test_a_saving_is_kept_within_five_percent() -> None:
    kept = Followed("a", "b", True, "", 100, 96)
    less = Followed("a", "c", True, "", 100, 90)
    more = Followed("a", "e", True, "", 100, 106)
    unknown = Followed("a", "d", False, "out of memory", None, None)
    assert [one.is_kept for one in (kept, less, more, unknown)] == [True, False, False, None]
    assert "**no**" in unknown.row() and "**" not in kept.row() and "**0 MiB**" in less.row()
    assert summary([kept, less, more, unknown]) == (
        "4 remedies of 1 deaths were called enough; with 3 of them the program ran to its end. "
        "3 savings were measured; 1 came within 5% of what was promised."
    )
