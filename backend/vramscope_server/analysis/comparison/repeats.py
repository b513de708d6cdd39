"""Groups runs that repeat one configuration: equal in all known settings except the seed.

Runs with unknown settings are not grouped: the mean of two different trainings has no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from vramscope_server.analysis.comparison.comparability import STEPS_DIFFER
from vramscope_server.analysis.comparison.labels import chips_of

Run = Mapping[str, Any]
"""A run in the form of GET /runs/RUN."""

NAMES: Final = frozenset(
    {
        "checkpoint_dir", "default_root_dir", "exp_name", "experiment_name", "log_dir", "logging_dir", "out_dir", "output_dir",
        "run_name", "save_dir",
    }
)  # fmt: skip
"""Settings that only name a run or its output folder."""
_OPTION: Final = re.compile(r"[-+]*([\w.\-]+)=(.*)", re.DOTALL)
_NOTEBOOK: Final = "ipykernel_launcher"
"""Its arguments name a connection, not settings of the training."""


def is_seed(name: str) -> bool:
    """Whether a setting is a random seed: ``seed``, ``data_seed``, ``model.random_state``."""
    last = _last(name)
    return last == "seed" or last.endswith(("_seed", "random_state")) or last.startswith("seed_")


def _last(name: str) -> str:
    return name.rpartition(".")[2].replace("-", "_").lower()


def repeats(runs: Sequence[Run]) -> list[list[int]]:
    """Groups of positions in ``runs``, in their order: repeats together, all other runs alone."""
    equal: dict[str, list[int]] = {}
    for position, run in enumerate(runs):
        if run["state"] == "finished" and run["steps"]:
            equal.setdefault(_identity(run), []).append(position)
    groups = [one for many in equal.values() for one in _with_same_code(runs, many)]
    within = {position for group in groups for position in group}
    return sorted([*groups, *([position] for position in range(len(runs)) if position not in within)])


def _with_same_code(runs: Sequence[Run], positions: list[int]) -> Iterator[list[int]]:
    """Yield groups of runs with equal steps and the same code: a clean commit, or different seeds."""
    left = list(positions)
    while left:
        steps = runs[left[0]]["steps"]
        group = [at for at in left if abs(runs[at]["steps"] - steps) <= STEPS_DIFFER * max(runs[at]["steps"], steps)]
        left = [at for at in left if at not in group]
        seeds = [_seeds(runs[at]) for at in group]
        if _clean(runs[group[0]]) or (all(seeds) and len(set(seeds)) == len(group)):
            yield group


def _clean(run: Run) -> bool:
    """Whether the code is known (a commit without ``+``, which marks changed files) and the run has settings."""
    commit = run["git_commit"]
    return bool(commit) and not commit.endswith("+") and any(_settings(run))


def _identity(run: Run) -> str:
    """All properties that repeats share, as one text."""
    first = run["ranks"][0] if run["ranks"] else {}
    chips = chips_of(run["techniques"])
    return repr(
        (
            *(run[name] for name in ("project", "device", "capacity_bytes", "world_size", "framework")),
            *(run[name] for name in ("allocator_settings", "git_commit")),
            *(first.get(name) for name in ("torch", "cuda")),
            run["command"][:1],
            sorted((name, repr(value)) for name, value in _settings(run) if not is_seed(name)),
            None if chips is None else sorted(chips.items()),
            sorted((leak["kind"], leak["name"]) for leak in run["leaks"] or ()),
        )
    )


def _seeds(run: Run) -> str:
    """All seeds of the run as text; empty if there are none."""
    return repr(sorted((name, str(value)) for name, value in _settings(run) if is_seed(name))).strip("[]")


def _settings(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield settings of the configuration and the command line, without those that only name the run."""
    for name, value in run["config"].items():
        if _last(name) not in NAMES:
            yield f"config.{name}", value
    yield from ((name, value) for name, value in _arguments(run["command"]) if _last(name) not in NAMES)


def _arguments(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of ``--seed 1``, ``--seed=1`` and ``seed=1``. Positional arguments are named by position."""
    if not command or _NOTEBOOK in command[0]:
        return
    words = iter(enumerate(command[1:]))
    waiting: str | None = None
    for place, word in words:
        option = _OPTION.fullmatch(word)
        if option is not None:
            if waiting is not None:
                yield waiting, ""
            waiting = None
            yield option[1], option[2]
        elif word.startswith("-") and not _is_number(word):
            if waiting is not None:
                yield waiting, ""
            waiting = word.lstrip("-")
        else:
            yield waiting or f"argument {place}", word
            waiting = None
    if waiting is not None:
        yield waiting, ""


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
