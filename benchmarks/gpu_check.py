"""Checks vramscope on a real GPU and writes one JSON file. Takes at most ten minutes and needs no network.

    python benchmarks/gpu_check.py --out FOLDER            runs all parts; writes FOLDER/gpu_check.json
    python benchmarks/gpu_check.py --out FOLDER peaks cost  runs these parts only

========  ==========================================================================================
tests     runs tests/gpu and lists every failure
peaks     trains a GPT-2 twice without and once with the agent; compares peaks and losses
replays   predicts peaks under other allocator settings by replay, then measures them on the GPU
story     runs a server, a training to its end and one that runs out of memory; stores the answers
models    peaks of common models and workspaces of libraries, by benchmarks/model_peaks.py
cost      runs benchmarks/training_cost.py
========  ==========================================================================================

Each part runs in processes of its own with a time limit. A part that fails is reported, and the others still run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "max_split_size_mb:128,roundup_power2_divisions:8",
)
TRAININGS = ("gpt", "cnn", "lengths", "evaluation", "accumulation", "prefetch")
COUNTED = ("peak_reserved_bytes", "peak_allocated_bytes", "retries", "device_allocs", "out_of_memory")

PEAKS = """
import json, sys
import torch
sys.path.insert(0, {examples!r})
from gpt2 import GPT2, Shape
watched = sys.argv[1] == "watched"
if watched:
    from vramscope import agent
    session = agent.attach(None, name="peaks", server=sys.argv[2])
torch.manual_seed(0)
model = GPT2(Shape(layers=6)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
peaks, losses = [], []
for step in range(30):
    torch.cuda.reset_peak_memory_stats()
    ids = torch.randint(0, 50257, (4, 256 + 64 * (step % 5)), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(ids, ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    peaks.append(torch.cuda.max_memory_allocated())
    losses.append(loss.item())
print("RESULT " + json.dumps({{"peaks": peaks, "losses": losses, "run": session.run_id if watched else None}}))
if watched:
    agent.detach()
"""

DEATH = """
import sys
import torch
sys.path.insert(0, {examples!r})
from gpt2 import GPT2, Shape
from vramscope import agent
agent.attach(None, name="death", server=sys.argv[1])
model = GPT2(Shape()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step, rows in enumerate((4, 4, 4, 1024)):
    ids = torch.randint(0, 50257, (rows, 1024), device="cuda")
    loss = model(ids, ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""


def environment() -> dict[str, str]:
    """The environment of every child: this checkout first on the path, and no message on the terminal."""
    path = os.pathsep.join([str(ROOT / "agent"), str(ROOT / "backend"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "VRAMSCOPE_QUIET": "1"}


def child(*command: object, seconds: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of ours with a time limit and captures its output."""
    words = [sys.executable, *map(str, command)]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=seconds, cwd=ROOT, env={**environment(), **variables}
    )


def facts() -> dict[str, Any]:
    """The card, the driver and the versions."""
    code = (
        "import json, torch; p = torch.cuda.get_device_properties(0); "
        "free, total = torch.cuda.mem_get_info(); "
        "print(json.dumps({'card': p.name, 'total_bytes': p.total_memory, 'free_bytes_at_start': free, "
        "'capability': [p.major, p.minor], 'torch': torch.__version__, 'cuda': torch.version.cuda}))"
    )
    found = json.loads(child("-c", code, seconds=120).stdout)
    query = ["nvidia-smi", "--query-gpu=driver_version,memory.total,memory.used", "--format=csv,noheader"]
    try:
        smi = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip()
    except OSError:
        smi = "nvidia-smi is not here"
    return {
        **found,
        "nvidia_smi": smi,
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
    }


def tests(folder: Path) -> dict[str, Any]:
    """Results of tests/gpu."""
    report = folder / "tests.xml"
    workers = ["-n", "8"] if (os.cpu_count() or 1) >= 8 else []
    done = child(
        *("-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider", "--timeout", 150, f"--junitxml={report}"),
        *workers,
        seconds=280,
    )
    (folder / "tests.txt").write_text(done.stdout[-200_000:] + done.stderr[-20_000:])
    if not report.exists():
        return {"error": (done.stdout + done.stderr)[-2000:]}
    suite = next(ElementTree.parse(report).iter("testsuite"))
    failures = []
    for case in suite.iter("testcase"):
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                message = (found.get("message") or "")[:400]
                failures.append({"test": f"{case.get('classname')}::{case.get('name')}", "message": message})
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    return {**counts, "seconds": float(suite.get("time", 0)), "failed": failures}


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object that a child printed."""
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return found
    raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-1500:]}")


def answer(url: str, *words: object, seconds: float = 120) -> Any:
    """What a vramscope command prints as JSON."""
    done = child("-m", "vramscope_server", *words, "--json", seconds=seconds, VRAMSCOPE_SERVER=url)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"exit_code": done.returncode, "error": (done.stderr or done.stdout)[-1500:]}


def peaks(folder: Path) -> dict[str, Any]:
    """Each step's peak: unwatched, by the user's own counters while watched, and as vramscope stored it."""
    from serving import Serving

    script = PEAKS.format(examples=str(ROOT / "examples"))
    with Serving() as serving:
        alone = result_of(child("-c", script, "alone", seconds=120))
        again = result_of(child("-c", script, "alone", seconds=120))
        watched = result_of(child("-c", script, "watched", serving.url, seconds=120))
        steps = answer(serving.url, "steps", watched["run"])
        shown = answer(serving.url, "show", watched["run"])
    stored = [row["peak_allocated_bytes"] for row in steps] if isinstance(steps, list) else steps
    return {
        "alone": alone["peaks"],
        "users_counters_while_watched": watched["peaks"],
        "stored": stored,
        "losses_are_equal": alone["losses"] == watched["losses"],
        "unwatched_losses_are_equal": alone["losses"] == again["losses"],
        "losses": {"alone": alone["losses"], "again": again["losses"], "watched": watched["losses"]},
        "show": shown,
    }


def replays(folder: Path) -> dict[str, Any]:
    """Peaks under other allocator settings, predicted from one recording and measured."""
    code = f"""
import json, os, sys
sys.path[:0] = [{str(ROOT / "tests" / "whatif")!r}]
from measured import measure_all
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.whatif.sweep import check, predict
NAMES, CONFS, COUNTED, folder = {TRAININGS!r}, {SETTINGS!r}, {COUNTED!r}, {str(folder)!r}
if __name__ == "__main__":
    paths = {{name: f"{{folder}}/{{name}}.pickle.gz" for name in NAMES}}
    recorded = measure_all([(n, "", {{"steps": 6, "snapshot": p}}) for n, p in paths.items()], workers=3)
    measured = measure_all([(n, c, {{"steps": 6}}) for c in CONFS for n in NAMES], workers=4)
    questions = [(n, c) for c in CONFS for n in NAMES]
    traces = {{n: read(paths[n]).devices[0] for n in NAMES}}
    rows = []
    for (name, conf), real in zip(questions, measured):
        told = predict(traces[name], conf)
        rows.append({{"training": name, "settings": conf, "measured": {{k: real[k] for k in COUNTED}},
                      "predicted": {{k: getattr(told, k) for k in COUNTED}}, "band": told.band}})
    residuals = {{n: {{"exact": r.exact, "sentence": r.words}} for n, r in ((n, check(t)) for n, t in traces.items())}}
    print("RESULT " + json.dumps({{"rows": rows, "residuals": residuals, "recorded": dict(zip(NAMES, recorded))}}))
"""
    script = folder / "replays_child.py"
    script.write_text(code)
    found = result_of(child(script, seconds=240))
    rows = found["rows"]
    found["exact"] = sum(row["measured"] == row["predicted"] for row in rows)
    found["in_band"] = sum(
        low <= row["measured"]["peak_reserved_bytes"] <= high
        for row in rows
        for low, high in [row["band"] or [row["predicted"]["peak_reserved_bytes"]] * 2]
    )
    found["predictions"] = len(rows)
    return found


def story(folder: Path) -> dict[str, Any]:
    """A training to its end and one that runs out of memory, as a user sees them."""
    from serving import Serving

    with Serving() as serving:
        began = time.monotonic()
        gpt2 = [ROOT / "examples" / "gpt2.py", "--server", serving.url, "--name", "gpt2", "--steps", 120]
        done = child(*gpt2, seconds=150)
        seconds = time.monotonic() - began
        died = child("-c", DEATH.format(examples=str(ROOT / "examples")), serving.url, seconds=120)
        commands = {
            "show": ("show", "gpt2"),
            "leaks": ("leaks", "gpt2"),
            "whatif": ("whatif", "gpt2", "--conf", "expandable_segments:True", "--conf", "max_split_size_mb:128"),
            "predict": ("predict", "gpt2"),
            "oom": ("oom", "death"),
            "oom_show": ("show", "death"),
        }
        answers = {name: answer(serving.url, *words) for name, words in commands.items()}
        log = (serving.folder / "server.log").read_text()
    return {
        "exit_code": done.returncode,
        "output": (done.stdout + done.stderr)[-3000:],
        "seconds": round(seconds, 1),
        "death_exit_code": died.returncode,
        "death_output": (died.stdout + died.stderr)[-3000:],
        "answers": answers,
        "server_errors": [line for line in log.splitlines() if "ERROR" in line or "Traceback" in line][:20],
    }


def models(folder: Path) -> dict[str, Any]:
    """Peaks of common models, and what convolutions and matrix products take beside their tensors."""
    out = folder / "models.json"
    done = child(ROOT / "benchmarks" / "model_peaks.py", "--workers", 4, "--out", out, seconds=150)
    if not out.exists():
        raise RuntimeError(done.stderr[-1500:])
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def cost(folder: Path) -> dict[str, Any]:
    """The agent's cost on the training thread, as benchmarks/training_cost.py measures it."""
    program = ROOT / "benchmarks" / "training_cost.py"
    words = ("--rounds", 3, "--variants", "floor,default", "--without-traceml", "--json")
    done = child(program, *words, seconds=280)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "peaks": peaks,
    "story": story,
    "replays": replays,
    "tests": tests,
    "models": models,
    "cost": cost,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder for the results")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    folder: Path = chosen.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ.update(environment())
    results: dict[str, Any] = {"facts": facts()}
    print(json.dumps(results["facts"]), flush=True)
    failed = False
    for name in chosen.parts or PARTS:
        began = time.monotonic()
        try:
            results[name] = PARTS[name](folder)
        except (Exception, SystemExit) as error:  # a failing part is a result; the others still run
            results[name], failed = {"error": f"{type(error).__name__}: {error}"[-3000:]}, True
        results[name]["took_seconds"] = round(time.monotonic() - began, 1)
        (folder / "gpu_check.json").write_text(json.dumps(results, indent=1).replace(f"{ROOT}/", ""))
        print(f"{name}: {summary(name, results[name])}", flush=True)
    sys.exit(failed)


def summary(name: str, result: dict[str, Any]) -> str:
    """One line on a part's result."""
    if "error" in result:
        return f"failed: {result['error'][-800:]}"
    took = f"{result['took_seconds']:.0f} s"
    if name == "tests":
        return f"{result['tests']} tests, {result['failures']} failures, {result['errors']} errors, {took}"
    if name == "peaks":
        same = result["alone"] == result["users_counters_while_watched"] == result["stored"]
        return (
            f"peaks {'agree' if same else 'differ'}, losses equal: {result['losses_are_equal']} "
            f"(twice without the agent: {result['unwatched_losses_are_equal']}), {took}"
        )
    if name == "replays":
        return (
            f"{result['exact']} of {result['predictions']} predictions exact, {result['in_band']} in their band, {took}"
        )
    return took


if __name__ == "__main__":
    main()
