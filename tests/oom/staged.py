"""Runs a death in a process of its own against a server, applies its first sure remedy, and runs it again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # tests are imported by path: their neighbour is not a package

import httpx  # noqa: E402
import warm  # noqa: E402
from deaths import PRELUDE, Death  # noqa: E402

TIMEOUT_SECONDS = 400
"""Seconds for one process. Trainer gathers data on the host, which takes minutes on shared cores."""


def run(
    death: Death, server: str, folder: Path, remedy: dict[str, Any] | None = None, **more: str
) -> tuple[str, int, str]:
    """(run id, exit code, what it said)."""
    ident = more.get("RUN", uuid.uuid4().hex[:16])
    env = {
        **os.environ,
        "VRAMSCOPE_SERVER": server,
        "VRAMSCOPE_SPOOL_DIR": str(folder / "spool"),
        "EMULATED_GPU_TOTAL_MEM": death.memory,
        "EMULATED_GPU_LEDGER": "private",
        "RUN": ident,
        "RUN_NAME": death.name,
        "REMEDY": "{}",
        **death.env,
        **applied(remedy or {}, death),
        **more,
    }
    if env["EMULATED_GPU_LEDGER"] == "own":
        env["EMULATED_GPU_LEDGER"] = str(folder / f"ledger-{ident}")
    file = folder / f"{ident}{more.get('RANK', '')}.py"
    file.write_text(PRELUDE + textwrap.dedent(death.script))
    program = warm.Program(f"exec(compile(open({str(file)!r}).read(), {str(file)!r}, 'exec'))", env=env, cwd=folder)
    out, err = program.communicate(timeout=TIMEOUT_SECONDS)
    return ident, int(program.returncode or 0), out + err


def applied(remedy: dict[str, Any], death: Death) -> dict[str, str]:
    """The environment in which a remedy of ``vramscope oom --json`` is followed."""
    if not remedy:
        return {}
    wishes: dict[str, Any] = {}
    env: dict[str, str] = {}
    if remedy["conf"]:
        env["PYTORCH_CUDA_ALLOC_CONF"] = remedy["conf"]
    elif remedy["micro_batches"]:
        wishes["micro_batches"] = remedy["micro_batches"]
    elif length := re.match(r"inputs of a length of ([\d,]+)", remedy["what"]):
        wishes["length"] = int(length[1].replace(",", ""))
    elif remedy["card_bytes"]:
        env["EMULATED_GPU_TOTAL_MEM"] = str(remedy["card_bytes"])
    elif "foreach=False" in remedy["what"]:
        wishes["foreach"] = False
    elif remedy["what"].startswith("SGD"):
        wishes["optimizer"] = "SGD"
    elif "set_per_process_memory_fraction" in remedy["what"]:
        wishes["limit"] = False
    elif "other process" in remedy["what"]:
        wishes["other"] = False
    elif remedy["what"].startswith(
        ("models that do not train", "free the copies of weights", "set the gradients of frozen")
    ):
        wishes["beside"] = False
    elif remedy["what"].startswith("keep ") and death.cause != "leak":
        wishes["data"] = "host"
    elif remedy["what"].startswith("make the copy of"):
        wishes["copy"] = "host"
    elif "gradient_as_bucket_view=True" in remedy["what"]:
        wishes["buckets"] = "views"
    elif death.cause == "leak" or "no backward follows" in remedy["what"] or "torch.no_grad() where" in remedy["what"]:
        wishes["leak"] = False
    else:
        raise AssertionError(f"nobody knows how to follow: {remedy['what']}")
    return {**env, "REMEDY": json.dumps(wishes)}


def lines_of(death: Death, file: str) -> list[int]:
    """The lines with its mark. A request of any of them may be the one that fails."""
    mark = death.line or "# asks"
    return [number for number, line in enumerate(Path(file).read_text().splitlines(), 1) if mark in line]


def asked_at(death: Death, file: str) -> int:
    """The first of these lines."""
    return lines_of(death, file)[0]


def report_of(server: str, run_id: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The list of a run's errors, and the fatal one explained."""
    deadline = time.monotonic() + 90
    with httpx.Client(base_url=f"{server}/api/v1", timeout=300, trust_env=False) as http:
        errors = http.get(f"/runs/{run_id}/oom").raise_for_status().json()
        if errors["fatal"] is None:
            return errors, None
        while True:  # (what the open window adds comes later)
            error = http.get(f"/oom/{errors['fatal']}", params={"wait_seconds": 20}).raise_for_status().json()
            if not error["pending"] or time.monotonic() > deadline:
                return errors, error


@dataclass
class Outcome:
    """The result of a death: the error as reported, what was tried, and all that is wrong with the report."""

    death: Death
    report: dict[str, Any] | None
    tried: dict[str, Any] | None
    wrong: list[str]


def staged(death: Death, server: str, folder: Path) -> Outcome:
    """Run it, judge the report, apply the first sure remedy, and run it again."""
    run_id, code, output = run(death, server, folder)
    wrong = []
    if death.killed:
        sync(server, folder)
    elif (code == 0) != death.survived:
        wrong.append(f"it ended with {code}")
    _, error = report_of(server, run_id)
    if error is None:
        return Outcome(death, None, None, [*wrong, f"no record came: {output[-2000:]}"])
    script = folder / f"{run_id}.py"
    is_sure = any(remedy["enough"] for remedy in error["remedies"])
    for name, seen, right in [
        ("cause", error["cause"], death.cause or None),
        # (Of a killed process it is unknown until the server takes the run for lost.)
        ("survived", error["survived"], None if death.killed and error["survived"] is None else death.survived),
        ("kind", error["message"].get("kind", death.kind), death.kind),
        ("phase", error["phase"], death.phase or error["phase"]),
        ("module", error["culprit"]["module"], death.module or error["culprit"]["module"]),
        ("node", error["node"], death.node or error["node"]),
        ("sure remedy", is_sure, is_sure if death.remedy is None else death.remedy),
    ]:
        if seen != right:
            wrong.append(f"{name}: {seen}, and is {right}")
    culprit = error["culprit"]
    if death.line and (culprit["file"] != str(script) or culprit["line"] not in lines_of(death, str(script))):
        wrong.append(f"line: {culprit['file']}:{culprit['line']}, and is one of {lines_of(death, str(script))}")
    page = re.search(rf"^(?:\[rank\d+\]: )?vramscope: Details: \S+/runs/{run_id}/oom$", output, re.MULTILINE)
    if not death.survived and not death.killed and not (error["sentence"] in output and page):
        wrong.append(f"the console does not say what the page says: {output[-1000:]}")
    sure = next((remedy for remedy in error["remedies"] if remedy["enough"]), None)
    if death.source and (sure is None or sure["source"] != death.source):
        wrong.append(f"the first sure remedy is {sure}, and its number is not {death.source}")
    if sure is not None and death.tried:
        again, code, output = run(death, server, folder, sure)
        # (An error that is caught, and whose except block was the mistake, comes again and is survived.)
        left = [one for one in report_of(server, again)[0]["errors"] if death.survived or one["survived"] is not True]
        if code != 0 or left:
            wrong.append(f"{sure['what']} was not enough: {output[-2000:]}")
    return Outcome(death, error, sure if death.tried else None, wrong)


def sync(server: str, folder: Path) -> None:
    """What a process that was killed has left behind."""
    command = [sys.executable, "-m", "vramscope_server", "sync"]
    subprocess.run(
        command,
        env={**os.environ, "VRAMSCOPE_SERVER": server, "VRAMSCOPE_SPOOL_DIR": str(folder / "spool")},
        capture_output=True,
        check=True,
    )
