"""Runs the corpus with each threshold halved and doubled and with each rule switched off, and writes ABLATION.md.

python tests/leaks/ablation.py [--devices cpu cuda] [--sorts halved doubled removed] [--minutes 25] [--table]

All changes of one sort run together on a loop. If its verdict changes, bisection finds a change that alone has an effect; it counts
as active, is taken out, and the rest runs again. What is left over after all loops is inert. Inert changes of the CPU are tried
on the GPU. Results are kept in ablation.json, and a later run goes on from there.

A verdict is what the last scan reports (kind, name, file, line), whether judge.py accepts it (bytes included), and what earlier
scans reported. An effect counts if it shows twice, and if the unchanged detector gives the same verdict twice.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
os.environ.setdefault("EMULATED_GPU_LEDGER", "private")
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in [name for name in os.environ if name.startswith("VRAMSCOPE_")]:
    del os.environ[_name]

from child import Child, scans_of  # noqa: E402
from corpus import cases  # noqa: E402
from judge import faults  # noqa: E402
from variants import FACTORS, RULES, scaled, thresholds  # noqa: E402

HERE = Path(__file__).parent
RESULTS = HERE / "ablation.json"
SORTS = (*FACTORS, "removed")


class OutOfTime(Exception):
    """The budget is used up."""


class Bench:
    """Runs loops of one device under changes of one sort."""

    def __init__(self, device: str, until: float) -> None:
        self.runs = 0
        self._device = device
        self._child = Child()
        self._until = until
        self._unchanged: dict[str, str] = {}

    def unchanged(self, loop: str) -> str:
        """Verdict of the unchanged detector."""
        if loop not in self._unchanged:
            self._unchanged[loop] = self.verdict(loop, "removed", [])
        return self._unchanged[loop]

    def is_steady(self, loop: str) -> bool:
        """True where another unchanged run gives the same verdict."""
        return self.verdict(loop, "removed", []) == self.unchanged(loop)

    def has_effect(self, loop: str, sort: str, names: list[str]) -> bool:
        return bool(names) and self.verdict(loop, sort, names) != self.unchanged(loop)

    def verdict(self, loop: str, sort: str, names: list[str]) -> str:
        if time.monotonic() > self._until:
            raise OutOfTime
        self.runs += 1
        policy = {name: _plain(scaled(name, FACTORS[sort])) for name in names} if sort in FACTORS else {}
        without = names if sort == "removed" else []
        try:
            answer = self._child.ask("watch", loop, self._device, policy=policy, without=without)
        except RuntimeError as error:
            return f"failed: {str(error).strip().splitlines()[-1][:200]}"
        scans = scans_of(answer)
        last = sorted(_facts(leak) for leak in scans[-1][1].leaks) if scans else []
        ever = sorted({(leak.kind, leak.name) for _, scan in scans for leak in scan.leaks})
        return json.dumps([last, not faults(cases()[loop], scans, self._device), ever])

    def close(self) -> None:
        self._child.close()


def _facts(leak: Any) -> tuple[str, str, str, int]:
    return leak.kind, leak.name, (leak.file or "").rpartition("/")[2], leak.line or 0


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value


def culprit(bench: Bench, loop: str, sort: str, names: list[str]) -> str | None:
    """A change that alone has an effect on the loop; None where only several together have one."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    for part in (names[:half], names[half:]):
        if bench.has_effect(loop, sort, part):
            return culprit(bench, loop, sort, part)
    return None


def measure(bench: Bench, device: str, sort: str, known: dict[str, Any]) -> None:
    """Adds ``known[device][sort]``: the loop on which each active change showed, and how many loops the others ran on."""
    here = known.setdefault(device, {}).setdefault(sort, {"active": {}, "loops": [], "unsteady": [], "jointly": {}})
    others = known.get("cpu", {}).get(sort, {}).get("active", {}) if device != "cpu" else {}
    names = [
        name for name in (RULES if sort == "removed" else thresholds()) if name not in {**here["active"], **others}
    ]
    for loop, _ in sorted(cases().items(), key=lambda item: item[1].truth.frameworks):
        if loop in here["loops"]:
            continue
        left = list(names)
        while bench.has_effect(loop, sort, left):
            found = culprit(bench, loop, sort, left)
            if not bench.is_steady(loop):
                here["unsteady"].append(loop)
                break
            if found is None:
                here["jointly"][loop] = left
                break
            left.remove(found)
            if bench.has_effect(loop, sort, [found]):
                names.remove(found)
                here["active"][found] = loop
        here["loops"].append(loop)
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    words.add_argument("--sorts", nargs="+", default=SORTS, choices=SORTS)
    words.add_argument("--minutes", type=float, default=25.0)
    words.add_argument("--table", action="store_true", help="write the table only")
    asked = words.parse_args()
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    until = time.monotonic() + 60 * asked.minutes
    for device in [] if asked.table else asked.devices:
        bench = Bench(device, until)
        try:
            for sort in asked.sorts:
                began, runs = time.monotonic(), bench.runs
                measure(bench, device, sort, known)
                active, took = known[device][sort]["active"], time.monotonic() - began
                print(f"{device} {sort}: {len(active)} active, {bench.runs - runs} runs, {took:.0f} s", flush=True)
        except OutOfTime:
            print(f"{device}: out of time after {bench.runs} runs", flush=True)
        finally:
            bench.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU time of the loops: {used.ru_utime + used.ru_stime:.0f} s", flush=True)
    (HERE / "ABLATION.md").write_text(table(known))


def table(known: dict[str, Any]) -> str:
    rows = [f"| {name} | {sort} | {_cell(known, name, sort)} |" for name in thresholds() for sort in FACTORS]
    rows += [f"| {rule} | removed | {_cell(known, rule, 'removed')} |" for rule in RULES]
    measured = [
        f"| {device} | {sort} | {len(known.get(device, {}).get(sort, {}).get('loops', []))} of {len(cases())} |"
        for device in ("cpu", "cuda")
        for sort in SORTS
    ]
    jointly = sum(len(here["jointly"]) for sorts in known.values() for here in sorts.values())
    return HEAD.format(measured="\n".join(measured), jointly=jointly) + "\n".join(rows) + "\n"


def _cell(known: dict[str, Any], name: str, sort: str) -> str:
    """The loop on which an effect showed first, or on which devices none did."""
    inert = []
    for device in ("cpu", "cuda"):
        here = known.get(device, {}).get(sort)
        if here is not None and name in here["active"]:
            return f"changes {here['active'][name]} ({device})"
        if here is not None and len(here["loops"]) == len(cases()):
            inert.append(device)
    return f"none ({', '.join(inert)})" if inert else "not measured"


HEAD = """# Ablation of the leak detector

Written by `tests/leaks/ablation.py`, which says how. Each row changes one threshold of `LeakPolicy`, or switches one rule off.
A change with an effect names one labelled loop whose verdict it changes. "None" names the devices on which no loop's verdict
changed. Changes run together first: two that cancel each other on every loop would be missed.

Measured on commit 2f31a074 on 2026-11-30. "None" is no proof that a threshold is superfluous. Many decide
when a leak is reported, and the loops are long enough that the last verdict is the same. On {jointly} loops only
several changes together had an effect.

Eleven rules changed no verdict by themselves. Four of them have a unit test in `tests/agent` that fails without them: "batches of
several calls", "emptied in another function", "restarted values" and "line that fills an attribute". With the
other seven switched off together, one of 935 tests about leaks fails. They were not deleted: most prevent or withdraw a report, and
only 102 of the loops are innocent, too few to show that a guard is superfluous.

| device | change | loops measured |
|---|---|---|
{measured}

| threshold or rule | change | effect |
|---|---|---|
"""

if __name__ == "__main__":
    main()
