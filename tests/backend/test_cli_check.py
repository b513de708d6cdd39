"""``vramscope check``: what passes, what fails, and with which words and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from running import RunningServer
from test_cli import make_run
from wire_maker import GIB, Agent, leak, scan

Cli = Callable[..., tuple[int, str, str]]


def checked(cli: Cli, server: RunningServer, run: str, *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = cli("check", run, *words, "--json", "--server", server.url)
    answer = json.loads(out)
    assert answer["passed"] is (code == 0)
    return code, {one["check"]: one for one in answer["checks"]}


def with_look(server: RunningServer, name: str, *leaks: Any, **fields: Any) -> Agent:
    """A finished run in which somebody looked for leaks."""
    agent = Agent(name=name)
    server.send(
        agent,
        agent.samples(ooms=0),
        agent.steps(30, peak_allocated_bytes=3 * GIB, after_step_bytes=[GIB] * 30),
        scan(*leaks),
        agent.ended(**fields),
    )
    return agent


def test_a_run_that_went_well_passes(server: RunningServer, cli: Cli) -> None:
    agent = with_look(server, "well")
    code, out, err = cli("check", agent.run, "--peak-allocated", "3GiB", "--server", server.url)
    assert (code, err) == (0, "")
    assert "failed" not in out and out.count("ok ") == 4
    code, checks = checked(cli, server, agent.run, "--peak-allocated", str(3 * GIB), "--peak-reserved", "100 GB")
    assert code == 0 and list(checks) == ["finished", "oom", "leaks", "peak allocated", "peak reserved"]
    assert (checks["peak allocated"]["seen_bytes"], checks["peak allocated"]["limit_bytes"]) == (3 * GIB, 3 * GIB)
    assert checks["finished"]["seen_bytes"] is None


def test_each_check_fails_where_it_should(server: RunningServer, cli: Cli) -> None:
    crashed, leaking = with_look(server, "crashed", state="failed"), with_look(server, "leaking", leak())
    code, checks = checked(cli, server, crashed.run)
    assert code == 1 and [name for name, one in checks.items() if not one["passed"]] == ["finished"]
    code, checks = checked(cli, server, leaking.run)
    assert code == 1 and [name for name, one in checks.items() if not one["passed"]] == ["leaks"]
    assert checked(cli, server, leaking.run, "--skip", "leaks")[0] == 0
    code, checks = checked(cli, server, leaking.run, "--skip", "leaks", "--peak-allocated", "2.9GiB")
    assert code == 1 and not checks["peak allocated"]["passed"]
    code, _, err = cli("check", leaking.run, "--peak-allocated", "1GiB", "--server", server.url)
    assert (code, err) == (1, "vramscope: leaking: leaks and peak allocated failed.\n")


def test_a_peak_may_exceed_the_baselines_by_so_much(server: RunningServer, cli: Cli) -> None:
    base, more = make_run(server, "main", peak=2 * GIB), make_run(server, "more", peak=2 * GIB + GIB // 50)
    skip = ("--skip", "leaks", "--skip", "oom")
    assert checked(cli, server, more.run, *skip, "--baseline", base.run, "--tolerance", "1.01")[0] == 0
    code, checks = checked(cli, server, more.run, *skip, "--baseline", "main")
    assert code == 0, "a hundredth more is within what is not said otherwise"
    assert checks["against main"]["limit_bytes"] == int(2 * GIB * 1.01)
    code, checks = checked(cli, server, more.run, *skip, "--baseline", "main", "--tolerance", "0.5")
    assert code == 1 and "101.0 %" in checks["against main"]["words"]
    assert checks["against main"]["words"].endswith("(tolerance 0.5 %)")


def test_an_unknown_value_fails_only_with_strict(server: RunningServer, cli: Cli) -> None:
    nothing, bound = Agent(name="nothing"), Agent(name="bound")
    server.send(nothing, nothing.ended())
    words = (nothing.run, "--peak-allocated", "1GiB", "--baseline", nothing.run)
    assert checked(cli, server, *words, "--strict")[0] == 1
    code, checks = checked(cli, server, *words)
    assert code == 0
    assert [name for name, one in checks.items() if one["passed"] is None] == [
        "oom",
        "leaks",
        "peak allocated",
        "against nothing",
    ]
    assert checks["peak allocated"]["words"] == "unknown"
    server.send(bound, bound.steps(9, peak_allocated_bytes=GIB, foreign_reset=2), scan(), bound.ended())
    code, checks = checked(cli, server, bound.run, "--peak-allocated", "2GiB")
    assert code == 0 and checks["peak allocated"]["passed"] is None
    assert checks["peak allocated"]["words"].startswith("at least 1.00 GiB")
    assert checked(cli, server, bound.run, "--peak-allocated", "0.5GiB")[1]["peak allocated"]["passed"] is False
    zero = make_run(server, "zero", peak=0, rows=1)
    assert not checked(cli, server, bound.run, "--baseline", zero.run)[1]["against zero"]["passed"]


def test_a_sampled_peak_can_fail_and_never_pass(server: RunningServer, cli: Cli) -> None:
    """Of Intel XPU and Apple MPS samples are all that is known: the peak is at least the highest."""
    xpu, exact = without_peaks(server, "xpu", 3 * GIB), make_run(server, "exact", peak=2 * GIB)
    limits = ("--peak-allocated", "2.9GiB", "--peak-reserved", "5GiB")
    code, checks = checked(cli, server, xpu.run, *limits)
    assert code == 1
    assert (checks["peak allocated"]["passed"], checks["peak reserved"]["passed"]) == (False, None)
    assert checks["peak allocated"]["words"] == "at least 3.00 GiB (sampled)"
    assert checks["peak reserved"]["words"] == "at least 4.00 GiB (sampled)"
    assert checked(cli, server, xpu.run, "--peak-allocated", "3GiB")[1]["peak allocated"]["passed"] is None
    assert checked(cli, server, xpu.run, "--baseline", exact.run)[1]["against exact"]["passed"] is False
    found = {peak: checked(cli, server, run, "--baseline", xpu.run)[1]["against xpu"] for peak, run in (
        (2, exact.run), (4, make_run(server, "more", peak=4 * GIB).run), (3, xpu.run),
    )}  # fmt: skip
    assert {peak: one["passed"] for peak, one in found.items()} == {2: True, 4: None, 3: None}, "it may have had more"
    assert "66.7 % of at least 3.00 GiB (sampled)" in found[2]["words"]
    code, out, _ = cli("show", xpu.run, "--server", server.url)
    assert code == 0 and "at least 3.00 GiB (sampled)" in out and "at least 4.00 GiB (sampled)" in out


def test_one_rank_with_samples_alone_makes_the_peak_of_all_a_lower_bound(server: RunningServer, cli: Cli) -> None:
    agent = make_run(server, "mixed", peak=2 * GIB)
    without_peaks(server, "mixed", GIB, run=agent.run, rank=1)
    one = checked(cli, server, agent.run, "--peak-allocated", "3GiB")[1]["peak allocated"]
    assert (one["passed"], one["words"]) == (None, "at least 2.00 GiB (sampled)")


def without_peaks(server: RunningServer, name: str, allocated: int, **options: Any) -> Agent:
    """A finished run whose steps have no peaks."""
    agent = Agent(name=name, **options)
    unknown = dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "forward_peak_allocated_bytes"), -1)
    rows = agent.samples(3, allocated_bytes=[GIB, allocated, GIB], reserved_bytes=4 * GIB, ooms=0)
    server.send(agent, rows, agent.steps(9, **unknown), scan(), agent.ended())
    return agent


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--peak-allocated", "lots"), "--peak-allocated: 'lots' is not a size"),
        (("--peak-reserved", ""), "--peak-reserved: '' is not a size"),
        (("--peak-allocated", "20,5GiB"), "--peak-allocated: '20,5GiB' is not a size"),
        (("--peak-allocated", "20GiB/s"), "is not a size"),
        (("--tolerance", "nan"), "--tolerance"),
        (("--skip", "peaks"), "--skip: 'peaks' is not one of finished, oom, leaks"),
        (("--tolerance", "-1"), "--tolerance"),
    ],
)
def test_words_that_cannot_be_are_refused(server: RunningServer, cli: Cli, words: tuple[str, ...], why: str) -> None:
    agent = make_run(server, "words")
    code, out, err = cli("check", agent.run, *words, "--server", server.url)
    assert (code, out) == (2, "") and why in err


def test_a_baseline_that_is_not_there_is_not_found(server: RunningServer, cli: Cli) -> None:
    agent = make_run(server, "alone")
    code, out, err = cli("check", agent.run, "--baseline", "no such run", "--server", server.url)
    assert (code, out) == (3, "") and "not found" in err
