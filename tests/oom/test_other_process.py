"""A process that takes memory beside a training, until that runs out: named in the record, the command and the run's answer."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from waiting import eventually

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402
from staged import report_of, run  # noqa: E402

from vramscope.oom_diagnosis.other_processes import words_of  # noqa: E402
from vramscope.protocol.other_process import OtherProcess  # noqa: E402
from vramscope_server.cli.oom import show  # noqa: E402
from vramscope_server.cli.show import show as show_run  # noqa: E402

MIB = 1 << 20
GROWS = Death(
    "a rollout beside the training",
    "other_process",
    """
    import pathlib, subprocess
    pathlib.Path("rollout.py").write_text(
        "import sys, torch\\n"
        "first = torch.empty(100 << 20, dtype=torch.uint8, device='cuda'); print(1, flush=True)\\n"
        "sys.stdin.readline()\\n"
        "second = torch.empty(800 << 20, dtype=torch.uint8, device='cuda'); print(2, flush=True)\\n"
        "sys.stdin.read()\\n"
    )
    words = [sys.executable, "rollout.py", "--api-key", "sesame-4711-open"]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    model = stack(4, 1024)
    optimizer = optimizer_of(model)
    try:
        for n in range(4):
            step(model, optimizer, 2000, 1024)
        time.sleep(1)  # the sampler reads NVML meanwhile
        torch.cuda.empty_cache()
        other.stdin.write(b"go\\n"); other.stdin.flush(); other.stdout.readline()
        time.sleep(0.5)
        step(model, optimizer, 20000, 1024)  # asks
    finally:
        other.stdin.close()
        other.wait()
    """,
    memory="2560M",
    env={"EMULATED_GPU_LEDGER": "own"},
)


@pytest.mark.gpu
def test_the_process_that_grew_is_named_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = RunningServer(tmp_path / "server")
    try:
        run_id, _, output = run(GROWS, server.url, tmp_path)
        _, error = report_of(server.url, run_id)
        assert error is not None, output[-2000:]
        assert error["cause"] == "other_process"
        [other] = error["neighbours"]
        assert other["command"].endswith("rollout.py --api-key ***")
        assert other["user"]
        assert other["used_bytes"] - other["before_bytes"] == 800 * MIB
        assert error["neighbours_words"].startswith(f"Pid {other['pid']} (python")
        assert f"{other['used_bytes'] / (1 << 30):.2f} GiB" in error["neighbours_words"]
        assert error["neighbours_words"] in output, "the console says it below the traceback"

        show(server.url, False, run_id)
        printed = " ".join(capsys.readouterr().out.split())
        assert "OTHER PROCESS" in printed
        assert "rollout.py" in printed
        assert "sesame" not in printed + output

        eventually(lambda: "other processes" in printed_summary(server.url, run_id, capsys))
        assert f"pid {other['pid']} (python" in printed_summary(server.url, run_id, capsys)
        with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False) as http:
            eventually(lambda: http.get(f"/runs/{run_id}").json()["other_processes"])
            answer = http.get(f"/runs/{run_id}").raise_for_status().json()
            figure = http.get(f"/runs/{run_id}/figures/processes").raise_for_status().json()["figure"]
        [seen] = answer["other_processes"]
        assert (seen["pid"], seen["command"], seen["device"]) == (other["pid"], other["command"], 0)
        assert seen["peak_bytes"] == other["used_bytes"]
        assert seen["first_seconds"] <= seen["last_seconds"]
        labels = {trace["name"]: trace["y"] for trace in figure["data"] if trace["meta"]["role"] == "other-process-1"}
        [(label, levels)] = labels.items()
        assert label == f"{other['command']} (pid {other['pid']})"
        known = np.frombuffer(base64.b64decode(levels["bdata"]), levels["dtype"])
        known = known[np.isfinite(known)]
        assert known[0] == pytest.approx(other["before_bytes"] / (1 << 30), abs=0.01)
        assert max(known) == pytest.approx(other["used_bytes"] / (1 << 30), abs=0.01)
        assert "device_process" not in {event["kind"] for event in answer["events"]}
    finally:
        server.stop()


def printed_summary(server: str, run_id: str, capsys: pytest.CaptureFixture[str]) -> str:
    show_run(server, False, run_id)
    return " ".join(capsys.readouterr().out.split())


def process(pid: int, used: int | None, before: int | None = None, seconds: int | None = None) -> OtherProcess:
    return OtherProcess(
        pid=pid,
        used_bytes=None if used is None else used * MIB,
        before_bytes=None if before is None else before * MIB,
        before_seconds=seconds,
    )


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([], ""),
        ([process(7, None)], ""),
        ([process(7, 900)], "Pid 7 has 900 MiB."),
        ([process(7, 900), process(8, 100)], "Pid 7 has 900 MiB, the largest amount reported."),
        (
            [process(7, 900, 900, 60)],
            "Pid 7 has 900 MiB. No other process grew by 64.0 MiB or more in the last 60 seconds.",
        ),
        ([process(7, 900, 900, 60), process(8, None)], "Pid 7 has 900 MiB, the largest amount reported."),
        (
            [process(7, 900, 900, 60), process(8, 300, 100, 60)],
            "Pid 8 grew most: it had 100 MiB 60 seconds earlier, and now has 300 MiB.",
        ),
        (
            [process(7, 900, 100, 60), process(8, None)],
            "Pid 7 grew: it had 100 MiB 60 seconds earlier, and now has 900 MiB.",
        ),
        ([process(7, 900, 0, 1)], "Pid 7 grew: it was not on the device 1 second earlier, and now has 900 MiB."),
    ],
)
def test_the_sentence_says_what_was_measured(others: list[OtherProcess], words: str) -> None:
    assert words_of(others) == words


def test_a_process_is_named_by_all_that_is_known() -> None:
    one = OtherProcess(
        pid=7, used_bytes=None, command="python a.py", user="ada", container="abc", manager="slurm", job="5"
    )
    assert one.words == "pid 7 (python a.py, user ada, slurm job 5, container abc)"
    assert OtherProcess(pid=7, used_bytes=None).words == f"pid {7}"
