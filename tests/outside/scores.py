"""Runs programs that were rebuilt from public reports under the agent, and compares what vramscope says with the known cause.

Each program is a script with a literal ``EXPECTED`` (see README.md). It runs unchanged under ``vramscope run``.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import httpx

from vramscope.protocol.series import OVERLAPS

PROGRAMS: Final = tuple(sorted((Path(__file__).parent / "programs").glob("*.py")))
MARK: Final = "# <- here"
TIMEOUT_S: Final = 300
BYTES_SLACK: Final = 0.3
"""Accepted difference of the growth, as a fraction."""
ALARMING: Final = ("leak", "growth")
"""Levels of the leak verdict that are shown as a badge."""

OUR_WORDS: Final = {
    "gradients": ("weights",),
    "evaluation": ("activations", "leak"),
    "input": ("data",),
    "one_allocation": ("activations",),
    "other_processes": ("other_process",),
}
"""Causes in the words of who wrote the programs, and the causes of the API that mean the same."""

Score = Literal["right", "partly", "silent", "wrong"]
SCORES: Final = ("right", "partly", "silent", "wrong")
"""Best first."""


def is_even_half(name: str) -> bool:
    """True for programs of the half that nobody looks at while mending faults: those with even numbers."""
    return int(name.partition("_")[0]) % 2 == 0


@dataclass
class Truth:
    """What the public report established."""

    kind: Literal["leak", "innocent", "oom"]
    holder: tuple[str, ...] = ()
    growing: bool = True
    memory: str = "16G"
    cause: tuple[str, ...] = ()
    mentions: tuple[tuple[str, ...], ...] = ()
    bytes_per_step: int = 0
    """Growth in device memory. 0: not known."""
    raises_peak: bool = False
    """Whether the leak raises the peak by most of what it retains. False: not known."""
    lines: tuple[int, ...] = ()

    @classmethod
    def of(cls, program: Path) -> Truth:
        """Read it from a program, without running it."""
        text = program.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPECTED":
                given = ast.literal_eval(node.value)
                break
        else:
            raise ValueError(f"{program.name}: no EXPECTED")
        lines = tuple(number for number, line in enumerate(text.splitlines(), 1) if MARK in line)
        for name in ("holder", "cause"):
            given[name] = tuple(given.get(name, ()))
        given["mentions"] = tuple(tuple(group) for group in given.get("mentions", ()))
        return cls(**given, lines=lines)


@dataclass
class Said:
    """What vramscope says of a run."""

    code: int
    console: str
    """Lines of the agent."""
    errors: str
    """End of all that was written to stderr."""
    row: dict[str, Any]
    leaks: dict[str, Any]
    error: dict[str, Any] | None
    advice: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Judgement:
    """How good that is."""

    program: str
    kind: str
    score: Score
    why: str


def run(program: Path, truth: Truth, server: str, folder: Path) -> Said:
    """Run a program to its end and ask the server for everything that it says about it."""
    ident = uuid.uuid4().hex[:16]
    env = {
        **os.environ,
        "VRAMSCOPE_SERVER": server,
        "VRAMSCOPE_SPOOL_DIR": str(folder / "spool"),
        "VRAMSCOPE_RUN_ID": ident,
        "EMULATED_GPU_TOTAL_MEM": truth.memory,
        "EMULATED_GPU_LEDGER": "private",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "vramscope_server", "run", "--", sys.executable, str(program)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    console = "".join(f"{line}\n" for line in done.stderr.splitlines() if line.startswith("vramscope:"))
    with httpx.Client(base_url=f"{server}/api/v1", timeout=300, trust_env=False) as http:

        def get(path: str, **params: Any) -> Any:
            return http.get(path, params=params).raise_for_status().json()

        rows = [row for row in get("/runs", limit=100)["runs"] if row["run_id"] == ident]
        if not rows:
            raise AssertionError(
                f"{program.name}: no run appeared; it ended with {done.returncode}: {done.stderr[-1500:]}"
            )
        errors = get(f"/runs/{ident}/oom")
        error = get(f"/oom/{errors['fatal']}", wait_seconds=20) if errors["fatal"] else None
        advice = []
        for recording in get(f"/runs/{ident}/recordings")["recordings"]:
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s:
                answer = http.get(f"/recordings/{recording['recording']}/anatomy")
                if answer.status_code != 409:
                    break
                time.sleep(0.3)
            if answer.status_code == 200:
                advice += answer.json().get("advice", [])
        return Said(done.returncode, console, done.stderr[-1500:], rows[0], get(f"/runs/{ident}/leaks"), error, advice)


def run_and_judge(program: Path, truth: Truth, server: str, folder: Path) -> Judgement:
    """Run a program and compare. A program of which no run appears is answered wrong."""
    try:
        return judge(program, truth, run(program, truth, server, folder))
    except AssertionError as fault:
        return Judgement(program.stem, truth.kind, "wrong", str(fault))


def judge(program: Path, truth: Truth, said: Said) -> Judgement:
    """Compare what was said with the truth."""
    score, why = {"leak": _leak, "innocent": _innocent, "oom": _oom}[truth.kind](truth, said)
    if (said.code != 0) != (said.error is not None and said.error["survived"] is not True):
        score, why = "wrong", f"the program ended with {said.code}: {said.errors}"
    return Judgement(program.stem, truth.kind, score, why)


def _found(said: Said) -> str:
    return "; ".join(
        f"{leak['kind']} {leak['name']} at {Path(leak['file'] or '?').name}:{leak['line']}"
        for leak in said.leaks["leaks"]
    )


def _leak(truth: Truth, said: Said) -> tuple[Score, str]:
    level = said.leaks["verdict"]["level"]
    found = said.leaks["leaks"]
    named = [leak for leak in found if any(name in " ".join([leak["name"], *leak["chain"]]) for name in truth.holder)]
    if not truth.growing and not found:
        for advised in said.advice:
            if advised["line"] in truth.lines or any(name in advised["sentence"] for name in truth.holder):
                return "right", ""
    if not found:
        return "silent", said.leaks["verdict"]["sentence"]
    if not named:
        return "wrong", _found(said)
    if not any(leak["line"] in truth.lines for leak in named):
        return "partly", f"the line, of {truth.lines}: {_found(said)}"
    if truth.growing and level not in ALARMING:
        return "partly", f"{level}: {said.leaks['verdict']['sentence']}"
    if wrong_bytes := _wrong_bytes(truth, named):
        return "partly", wrong_bytes
    others = [leak for leak in found if leak not in named and leak["kind"] not in OVERLAPS and not leak["note"]]
    if others:
        return "partly", f"more than one: {_found(said)}"
    return "right", ""


def _wrong_bytes(truth: Truth, named: list[dict[str, Any]]) -> str:
    """Return what is wrong with the figures; empty if nothing is."""
    growth = sum(leak["growth_bytes_per_step"] or 0.0 for leak in named)
    if truth.bytes_per_step and abs(growth - truth.bytes_per_step) > BYTES_SLACK * truth.bytes_per_step:
        return f"{growth:.0f} bytes a step, not {truth.bytes_per_step}: {[leak['held_bytes'] for leak in named]}"
    for leak in named:
        effect = leak["peak_effect_bytes"]
        if truth.raises_peak and effect is not None and effect < leak["held_bytes"] / 2:
            return f"retains {leak['held_bytes']}, effect on the peak {effect}"
    return ""


def _innocent(truth: Truth, said: Said) -> tuple[Score, str]:
    if said.leaks["verdict"]["level"] in ALARMING:
        return "wrong", f"{said.leaks['verdict']['sentence']} {_found(said)}"
    spoken = re.sub(r"https?://\S+", "", said.console)  # (the address of the page Leaks is no statement)
    if match := re.search(
        r"^vramscope: (?!No leak found|No sign of a leak).*(leak|growth|grows).*", spoken, re.MULTILINE
    ):
        return "wrong", match[0]
    return "right", ""


def _oom(truth: Truth, said: Said) -> tuple[Score, str]:
    error = said.error
    if error is None:
        return "wrong", f"no error: it ended with {said.code}: {said.errors}"
    if error["cause"] is None:
        return "silent", error["sentence"]
    accepted = {ours for word in truth.cause for ours in (word, *OUR_WORDS.get(word, ()))}
    if "leak" in accepted and not truth.growing and any(name in error["sentence"] for name in truth.holder):
        accepted.add(
            "weights"
        )  # (a copy of the weights: whether the program needs it cannot be known, but its name is right)
    if error["cause"] not in accepted:
        return "wrong", f"{error['cause']}: {error['sentence']}"
    shown = ("sentence", "first_aid", "remedies", "culprit", "notes", "leaks")
    words = json.dumps([error[name] for name in shown]).lower()
    missing = [group for group in truth.mentions if not any(word.lower() in words for word in group)]
    if missing:
        return "partly", f"not mentioned: {missing}; {error['sentence']} {[one['what'] for one in error['remedies']]}"
    if truth.holder and not any(name.lower() in words for name in truth.holder):
        return "partly", f"the holder: {error['sentence']}"
    return "right", ""
