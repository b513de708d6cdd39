"""Which tests run: the fast tier, and the random sample of ``--sample``.

``make test-fast`` runs the fast tier. ``make test`` runs all tests but of two kinds a random sample: the cases of the corpora,
and the slow tests. ``make test-all`` runs everything.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

FAST_LEAVES_OUT = ("browser", "frameworks", "gpu", "postgres", "realgpu", "slow")
"""Markers of tests that ``--fast`` leaves out."""
FAST_LEAVES_OUT_FOLDERS = (
    "anatomy", "attack", "emulated_gpu", "golden", "journey", "leaks", "outside", "pages", "techniques", "unchanged",
)  # fmt: skip
"""Folders whose tests train, start a server or drive a browser for each case."""
FAST_LEAVES_OUT_FILES = frozenset(
    {
        "test_access.py", "test_bystanders.py", "test_caught.py", "test_cli_server.py", "test_compiled.py", "test_damage.py",
        "test_database.py", "test_docs_site.py", "test_durability.py", "test_exits.py", "test_forward.py", "test_frameworks.py",
        "test_graph_hazards.py", "test_held_over.py", "test_host.py", "test_launch.py", "test_life.py", "test_lifeline.py",
        "test_live.py", "test_newer_agent.py", "test_profiles.py", "test_record.py", "test_sender_processes.py",
        "test_sender_real_server.py", "test_setup.py", "test_snapshots.py", "test_sync.py", "test_users_history.py",
        "test_warming.py", "test_wheel.py", "test_against_the_allocator.py", "test_trainings.py", "test_cli_whatif.py",
        "test_docs_and_code.py", "test_recordings.py", "test_recordings_seen.py", "test_sweeps.py", "test_timeline.py",
        "test_leak_replay.py", "test_prediction.py", "test_deepspeed.py", "test_lost_run.py", "test_deaths.py",
        "test_beginning.py", "test_counting.py", "test_graph_allowance.py", "test_graph_elements.py", "test_old_cycles.py",
        "test_demo.py", "test_preloaded_process.py", "test_trackers.py", "test_cluster_jobs.py", "test_cli_snapshot.py",
        "test_other_models.py", "test_backup.py", "test_oidc.py", "test_proxy_users.py", "test_audit.py", "test_uploads.py",
        "test_artifact_store.py", "test_bucket_store.py", "test_artifact_processes.py",
    }
)  # fmt: skip
"""Files whose tests start processes, wait for real time or make very many objects."""
CORPUS_FILES = frozenset(
    {
        "test_corpus.py",
        "test_truths.py",
        "test_promises.py",
        "test_leaks.py",
        "test_deaths.py",
        "test_random_programs.py",
        "test_outside.py",
        "test_page_pictures.py",
        "test_unchanged.py",
        "test_try.py",
    }
)
"""Files with one test for each case of a large corpus. CI runs a random sample of the cases, the nightly job all."""
CORPUS_FOLDERS = frozenset({"dryrun", "leaks", "golden", "oom", "outside", "pages", "simulator", "unchanged"})
CORPUS_SHARE = 0.15
"""Share of the cases of a corpus in the sample; the environment variable of this name overrides it."""
SLOW_CORPORA = {"outside": 0.5}
"""Factor on the share of corpora whose cases are whole trainings of five to ten seconds."""
SLOW_TESTS_SECONDS = 90.0
"""Time that all slow tests of the sample may take together, as ``slow_tests.json`` has it.

The environment variable of this name overrides it; ``inf`` runs them all. With this value the tests take about ten minutes on
two cores. A higher value tests more in each run, a lower one ends earlier.
"""
SLOW_TESTS = Path(__file__).with_name("slow_tests.json")


def corpus_share() -> float:
    return float(os.environ.get("CORPUS_SHARE") or CORPUS_SHARE)


def slow_tests_seconds() -> float:
    return float(os.environ.get("SLOW_TESTS_SECONDS") or SLOW_TESTS_SECONDS)


def choose_seed() -> None:
    """Choose the seed of the sample where nobody has; workers that start later draw by it, too."""
    os.environ.setdefault("SAMPLE_SEED", str(random.SystemRandom().randrange(10**6)))


def description_of_sample() -> str:
    """One line for the head of the output."""
    return (
        f"sample: {corpus_share():.0%} of the corpora, {slow_tests_seconds():.0f} s of slow tests, drawn by"
        f" SAMPLE_SEED={os.environ['SAMPLE_SEED']}; make test-all runs all"
    )


def name_of(nodeid: str) -> str:
    """A test's id without the group of workers that pytest-xdist appends to it."""
    return re.sub(r"@[^\]]*$", "", nodeid)


def is_fast(item: pytest.Item) -> bool:
    """True for tests of the fast tier, among those that are collected for it."""
    slow = name_of(item.nodeid) in seconds_of_slow_tests()
    return not slow and not any(item.get_closest_marker(name) for name in FAST_LEAVES_OUT)


def is_in_a_left_out_file(path: Path) -> bool:
    """True for files and folders of tests that the fast tier does not even import: each worker would pay for them."""
    tests = Path(__file__).parent
    if tests not in path.parents:
        return False
    inside = path.relative_to(tests).parts
    return inside[0] in FAST_LEAVES_OUT_FOLDERS or inside[-1] in FAST_LEAVES_OUT_FILES


def is_of_a_corpus(path: Path, name: str) -> bool:
    """True for a case of a corpus, which is a test with parameters."""
    return path.parent.name in CORPUS_FOLDERS and path.name in CORPUS_FILES and "[" in name


def draw(name: str) -> float:
    """Random number from 0 to 1: the same one in all workers."""
    return random.Random(f"{os.environ['SAMPLE_SEED']} {name}").random()


def case_of(item: pytest.Item) -> str:
    """Case of a corpus: one name in all tests of the case, and on both devices."""
    return re.sub(r"^(cpu|cuda)-", "", name_of(item.name).partition("[")[2].rstrip("]"))


def kind_of(item: pytest.Item) -> str:
    """Kind of a corpus case: its test, and of pictures the scene, too."""
    kind, _, case = item.nodeid.partition("[")
    return f"{kind}[{case.partition('-')[0]}" if item.path.name == "test_page_pictures.py" else kind


@cache
def seconds_of_slow_tests() -> dict[str, float]:
    """Seconds that each slow test took when all were timed, by its id."""
    recorded: dict[str, float] = json.loads(SLOW_TESTS.read_text())
    return recorded


def left_out_of_sample(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Tests that are not drawn: cases of corpora, of each kind but one at least, and slow tests."""
    return _left_out_of_corpora(items) | _left_out_of_slow_tests(items)


def _left_out_of_corpora(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    if corpus_share() >= 1:
        return set()
    kinds: dict[str, list[tuple[float, pytest.Item]]] = {}
    for item in items:
        if is_of_a_corpus(item.path, item.name):
            kinds.setdefault(kind_of(item), []).append((draw(case_of(item)), item))
    left_out = set()
    for cases in kinds.values():
        share = corpus_share() * SLOW_CORPORA.get(cases[0][1].path.parent.name, 1.0)
        lowest = min(number for number, _ in cases)
        left_out |= {item for number, item in cases if number >= share and number > lowest}
    return left_out


def _left_out_of_slow_tests(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Slow tests in a random order, from the first that does not fit any more. A test that nobody has timed is not slow."""
    slow = []
    for item in items:
        name = name_of(item.nodeid)
        seconds = seconds_of_slow_tests().get(name)
        if seconds is not None and not is_of_a_corpus(item.path, item.name):
            slow.append((draw(name), seconds, item))
    slow.sort(key=lambda one: one[0])
    left = slow_tests_seconds()
    left_out = set()
    for _, seconds, item in slow:
        left -= seconds
        if left < 0:
            left_out.add(item)
    return left_out
