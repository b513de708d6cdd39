"""Other processes on a device: their names from a folder like ``/proc``, and the reports about them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vramscope.memory.nvml import Running
from vramscope.process.process_origin import UNKNOWN_ORIGIN, ProcessOrigin, origin_of
from vramscope.process.redaction import Secrets
from vramscope.protocol.messages import Event
from vramscope.protocol.other_process import EVENT, MAX_NEIGHBOURS
from vramscope.sampling.other_processes import MOST_EVENTS, MOST_NAMED, OtherProcesses

MIB = 1 << 20
CONTAINER = "ab" * 32
POD = "11111111-2222-3333-4444-555555555555"


def process(
    root: Path, pid: int, words: list[str], cgroup: str = "0::/user.slice", environ: dict[str, str] | None = None
) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
    (folder / "cgroup").write_text(cgroup + "\n")
    if environ is not None:
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environ.items()))
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / "passwd").write_text(
        f"root:x:0:0::/root:/bin/sh\nada:x:{os.getuid() or 4242}:1::/home/ada:/bin/sh\n"
    )


def of(root: Path, pid: int = 7) -> ProcessOrigin:
    return origin_of(pid, Secrets({}), root)


def test_a_command_is_shortened_and_its_secrets_are_removed(tmp_path: Path) -> None:
    process(
        tmp_path, 7, ["/opt/conda/bin/python", "/home/ada/rollout.py", "--api-key", "sesame-4711-open", "--port", "80"]
    )
    assert of(tmp_path).command == "python rollout.py --api-key *** --port 80"
    assert of(tmp_path).user == ("root" if os.getuid() == 0 else "ada")
    process(tmp_path, 8, ["python", "-u", "-c", "import torch; token = 'abc'"])
    assert of(tmp_path, 8).command == "python -u -c", "code may contain anything"
    process(tmp_path, 9, ["python", "-m", "vllm.serve", "x" * 300])
    assert (of(tmp_path, 9).command or "").startswith("python -m vllm.serve xxx")
    assert len(of(tmp_path, 9).command or "") == 120
    process(tmp_path, 10, ["VLLM::EngineCore_DP0"])
    assert of(tmp_path, 10).command == "VLLM::EngineCore_DP0"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["python", "-uc", "login('sesame')"], "python -uc"),
        (["python", "-X", "dev", "-W", "ignore", "-c", "login('sesame')"], "python -X dev -W ignore -c"),
        (["python", "-W", "ignore", "/a/train.py", "-c", "x.yaml"], "python -W ignore train.py -c x.yaml"),
        (["/bin/bash", "-lc", "KEY=sesame python train.py"], "bash -lc"),
        (["bash", "-o", "pipefail", "-ec", "KEY=sesame python train.py"], "bash -o pipefail -ec"),
        (["python -c login('sesame')"], "python -c"),
    ],
)
def test_code_is_left_out_behind_all_options(tmp_path: Path, words: list[str], shown: str) -> None:
    process(tmp_path, 7, words)
    assert of(tmp_path).command == shown


def test_of_another_users_process_only_program_and_script_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"SLURM_JOB_ID": "55"}
    process(tmp_path, 7, ["/usr/bin/python3", "-u", "/home/eve/train.py", "--name", "private"], environ=job)
    process(tmp_path, 8, ["/opt/tool", "private"])
    process(tmp_path, 9, ["python", "-m", "torch.distributed.run", "private"])
    process(tmp_path, 10, ["python /home/eve/train.py --name private"])
    process(tmp_path, 11, ["sshd: eve private"])
    process(tmp_path, 12, ["bash", "-lc", "NAME=private python train.py"])
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert of(tmp_path).command == "python3 -u train.py"
    assert of(tmp_path).job is None
    assert of(tmp_path, 8).command == "tool"
    assert of(tmp_path, 9).command == "python -m torch.distributed.run"
    assert of(tmp_path, 10).command == "python train.py", "a title that it gave itself"
    assert of(tmp_path, 11).command == "sshd:"
    assert of(tmp_path, 12).command == "bash -lc"


@pytest.mark.parametrize(
    ("cgroup", "container", "manager", "job", "pod"),
    [
        (f"0::/system.slice/docker-{CONTAINER}.scope", CONTAINER[:12], None, None, None),
        (f"12:memory:/docker/{CONTAINER}\n0::/", CONTAINER[:12], None, None, None),
        (
            f"0::/kubepods.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            CONTAINER[:12], "kubernetes", None, POD,
        ),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", None, "slurm", "4711", None),
        ("4:devices:/slurm/uid_1000/job_4711/step_batch", None, "slurm", "4711", None),
        ("0::/user.slice/job_list", None, None, None, None),
    ],
    ids=["docker", "docker of cgroup 1", "kubernetes", "slurm", "slurm of cgroup 1", "none"],
)  # fmt: skip
def test_container_and_job_are_read_from_the_control_group(
    tmp_path: Path, cgroup: str, container: str | None, manager: str | None, job: str | None, pod: str | None
) -> None:
    process(tmp_path, 7, ["python", "train.py"], cgroup)
    found = of(tmp_path)
    assert (found.container, found.manager, found.job, found.pod) == (container, manager, job, pod)


def test_an_environment_that_can_be_read_names_the_job(tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_ID": "60", "SLURM_ARRAY_JOB_ID": "55", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_NAME": "grpo"}
    process(tmp_path, 7, ["python"], environ={**slurm, "HF_TOKEN": "hf_0123456789abcdefghij"})
    assert of(tmp_path)[3:6] == ("slurm", "55_3", "grpo")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "rollout-0", "JOB_NAME": "rl"}
    process(tmp_path, 8, ["python"], f"0::/kubepods/pod{POD}/{CONTAINER}", environ=pod)
    assert of(tmp_path, 8)[2:] == (CONTAINER[:12], "kubernetes", "rl", None, "rollout-0")


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert of(tmp_path) == UNKNOWN_ORIGIN
    (tmp_path / "proc" / "7").mkdir(parents=True)
    assert of(tmp_path) == ProcessOrigin(user=str(os.getuid()))


class Watched:
    """Reports of a session with a clock of its own. This process has the number of the test's."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self.events: list[Event] = []
        self.read: list[int] = []
        self.others = OtherProcesses(
            self.events.append, lambda: 3, Secrets({}), origin=self._origin, now=lambda: self.time_s
        )

    def _origin(self, pid: int, secrets: Secrets) -> ProcessOrigin:
        self.read.append(pid)
        return ProcessOrigin(command=f"program {pid}")

    def note(self, after_s: float, own_pid: int | None = None, **mib: int | None) -> list[dict[str, Any]]:
        self.time_s += after_s
        own = os.getpid() if own_pid is None else own_pid
        sizes = {int(name[1:]): None if size is None else size * MIB for name, size in mib.items()}
        count = len(self.events)
        self.columns = self.others.note(0, Running(own, {own: 500 * MIB, **sizes}))
        assert all(event.kind == EVENT for event in self.events)
        return [dict(event.data) for event in self.events[count:]]


def test_a_process_is_reported_when_it_comes_changes_and_leaves() -> None:
    watched = Watched()
    [came] = watched.note(0, p7=900)
    assert came == {
        "pid": 7, "used_bytes": 900 * MIB, "peak_bytes": 900 * MIB, "command": "program 7", "device": 0, "ended": False,
        "series": "other_process_1_bytes",
    }  # fmt: skip
    assert watched.note(0.1, p7=2000) == [], "at most every five seconds"
    assert [one["peak_bytes"] for one in watched.note(5, p7=910)] == [2000 * MIB], "a short peak counts too"
    assert watched.note(6, p7=930) == [], "20 MiB are no change"
    [left] = watched.note(6)
    assert (left["ended"], left["used_bytes"], left["command"]) == (True, 0, "program 7")
    assert watched.note(6) == []
    assert watched.read == [7], "a name is read once"
    watched.note(6, p7=900)
    assert watched.read == [7, 7], "a number may be used again"


def test_what_waited_is_reported_although_the_amount_is_as_before() -> None:
    watched = Watched()
    watched.note(0, p7=900)
    assert watched.note(6, p7=900) == [] and watched.note(1, p7=900) == []
    assert len(watched.note(1, p7=2000)) == 1
    assert watched.note(1, p7=3000) == [] and watched.note(1, p7=2000) == []
    assert [one["peak_bytes"] for one in watched.note(6, p7=2000)] == [3000 * MIB]


def test_while_nothing_changes_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, compared = Watched(), []
    differs = watched.others._differs
    monkeypatch.setattr(watched.others, "_differs", lambda *args: compared.append(args) or differs(*args))
    watched.note(0, p7=900)
    for _ in range(20):
        watched.note(6, p7=900)
    assert len(compared) == 1
    watched.note(6, p7=901)
    assert len(compared) == 2


def test_a_device_where_much_changes_does_not_delay_the_reports_of_another() -> None:
    watched = Watched()
    for at in range(4):
        watched.time_s += 6
        for device, pid in ((0, 7), (1, 8)):
            watched.others.note(device, Running(os.getpid(), {os.getpid(): 0, pid: (1 + at) * 500 * MIB}))
    assert [event.data["device"] for event in watched.events] == [0, 1] * 4


def test_bytes_that_nvml_does_not_report_are_unknown() -> None:
    watched = Watched()
    [came] = watched.note(0, p7=None)
    assert "used_bytes" not in came
    assert "peak_bytes" not in came


def test_in_a_container_names_stay_unknown() -> None:
    """NVML's numbers are the host's there: the same number is another process here."""
    watched = Watched()
    [came] = watched.note(0, own_pid=40_000, p7=900)
    assert came["pid"] == 7
    assert "command" not in came
    assert watched.others.described(0, {7: 900 * MIB}, 40_000)[0].command is None
    assert watched.read == []


def test_the_number_of_reports_is_bounded() -> None:
    watched = Watched()
    assert len(watched.note(0, **{f"p{pid}": pid for pid in range(1, 41)})) == MOST_NAMED
    for at in range(MOST_EVENTS):
        watched.note(6, p1=1000 * (at % 2))
    assert len(watched.events) == MOST_EVENTS


def test_each_device_is_reported_though_another_changes_all_the_time() -> None:
    watched = Watched()
    for at in range(20):
        watched.note(1, p7=1000 * at)
        watched.others.note(1, Running(os.getpid(), {os.getpid(): 1, 8: (500 + 200 * at) * MIB}))
    assert sum(event.data["device"] == 1 for event in watched.events) == 4


def test_short_processes_are_forgotten_also_after_the_last_report() -> None:
    watched = Watched()
    for at in range(2000):
        watched.note(0.1 if at < 50 else 6, **{f"p{100 + at}": 1, "p7": 900})
    assert len(watched.events) == MOST_EVENTS
    assert {pid for _, pid in watched.others._peaks} == {7, 2099}
    assert set(watched.others._origins) <= {7, 2099}


def test_the_largest_four_have_a_series_each() -> None:
    watched = Watched()
    came = watched.note(0, p1=500, p2=400, p3=300, p4=200, p5=210)
    assert {one["pid"]: one["series"][14:15] for one in came if "series" in one} == {1: "1", 2: "2", 3: "3", 5: "4"}
    assert [watched.columns[f"other_process_{at}_bytes"] // MIB for at in range(1, 5)] == [500, 400, 300, 210]
    assert watched.note(6, p1=500, p2=400, p3=300, p4=250, p5=210) == [], "nearly as large is no reason to change"
    moved = watched.note(6, p1=500, p2=400, p3=300, p4=900, p5=210)
    assert {one["pid"]: one.get("series", "")[14:15] for one in moved} == {4: "4", 5: ""}
    watched.note(1, p1=500, p3=None)
    assert watched.columns == {"other_process_1_bytes": 500 * MIB}, "what left or is unknown has no value"


def test_the_end_reports_what_waits() -> None:
    watched = Watched()
    watched.note(0, p7=900)
    watched.note(0.1, p7=1900)
    watched.others.finish()
    assert watched.events[-1].data["used_bytes"] == 1900 * MIB


def test_growth_is_that_of_the_last_minute() -> None:
    watched = Watched()
    watched.note(0, p7=900, p8=100)
    watched.note(30, p7=900, p8=100)
    [seven, eight, nine] = watched.others.described(0, {9: 50 * MIB, 8: 400 * MIB, 7: 900 * MIB}, os.getpid())
    assert (seven.pid, seven.grown_bytes, seven.before_seconds) == (7, 0, 30)
    assert (eight.pid, eight.grown_bytes, eight.command) == (8, 300 * MIB, "program 8")
    assert (nine.before_bytes, nine.grown_bytes) == (0, 50 * MIB), "it was not on the device"
    watched.note(1, p7=900, p8=400)
    watched.note(100, p7=900, p8=400)
    assert [one.grown_bytes for one in watched.others.described(0, {8: 400 * MIB}, os.getpid())] == [0]
    crowd = watched.others.described(0, {pid: pid for pid in range(10, 2000)}, os.getpid())
    assert [one.pid for one in crowd] == list(range(1999, 1999 - MAX_NEIGHBOURS, -1)), "as many as a record may have"
    assert Watched().others.described(0, {8: MIB}, os.getpid())[0].before_bytes is None, "nothing was read before"
