"""``vramscope run``: a training is watched with no change of its code, and every other process is left in peace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from collector import Collector

from vramscope import launch
from vramscope.protocol import messages
from vramscope.settings import Settings

RUN = [sys.executable, "-c", "import sys; from vramscope.launch import main; sys.exit(main(sys.argv[1:]))"]


class Desk:
    """A folder with scripts, and the command."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder
        self.environ = {**os.environ, "VRAMSCOPE_SERVER": server, "VRAMSCOPE_SPOOL_DIR": str(folder / "spool")}
        self.environ.pop("PYTHONPATH", None)

    def script(self, code: str, name: str = "train.py") -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return str(path)

    def stand_ins(self) -> None:
        """Write a fake torch and agent that print what happens, for tests that do not need the real ones."""
        self.script("from torch.optim import Optimizer\n", "path/torch/__init__.py")
        self.script("from torch.optim.optimizer import Optimizer\n", "path/torch/optim/__init__.py")
        self.script(
            "class Optimizer:\n    'Steps.'\n    def __init__(self, parameters, lr=1):\n        print('made', lr)\n",
            "path/torch/optim/optimizer.py",
        )
        self.script("", "path/vramscope/__init__.py")
        self.script("def attach(): print('attached')\n", "path/vramscope/agent.py")
        self.environ["PYTHONPATH"] = f"{launch.AUTOSTART}{os.pathsep}{self.folder / 'path'}"

    def python(self, code: str, *options: str) -> subprocess.CompletedProcess[str]:
        """A process under ``vramscope run``, as it is after the exec."""
        words = [sys.executable, *options, self.script(code)]
        return subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=60)

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environ, **environ}
        return subprocess.run([*RUN, *words], env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def desk(tmp_path: Path, collector: Collector) -> Desk:
    return Desk(tmp_path, collector.url)


def attached_in(collector: Collector) -> dict[str, messages.Attached]:
    """The last word of each session about itself."""
    return {
        batch.session: message
        for batch in collector.batches
        for message in batch.messages
        if isinstance(message, messages.Attached)
    }


TRAINING = """
import sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_real_training_is_watched_and_its_exit_code_is_its_own(desk, collector):
    script = desk.script(TRAINING + "\nassert 'vramscope' in sys.modules\nsys.exit(7)\n")
    words = ["--project", "my project", "--name", "my run", "--tag", "a", "--tag", "b", "--interval-ms", "50"]
    done = desk.run(*words, "--", sys.executable, script, "--lr", "--project")
    assert done.returncode == 7, done.stderr
    [session] = attached_in(collector).values()
    assert (session.project, session.name, session.tags) == ("my project", "my run", ["a", "b"])
    assert session.command[-2:] == ["--lr", "--project"]
    [run] = {batch.run for batch in collector.batches}
    assert (
        f"vramscope: this run will appear at {collector.url}/runs/{run} when its training or inference begins\n"
        "vramscope: watching run 'my run'\n" in done.stderr
    )
    assert done.stderr.count(f"/runs/{run}") == 2, "once at the start, and once at the end"
    assert "vramscope: 5 steps on the CPU" in done.stderr
    steps = sum(m.rows for m in collector.messages if isinstance(m, messages.Block) and m.stream == "steps")
    assert steps == 5, "the first step counts too"
    assert isinstance(collector.messages[-1], messages.Ended)


@pytest.mark.gpu
def test_the_first_window_finds_no_incomplete_optimizer(desk, collector, emulated_gpu):
    """On a GPU it opens as soon as something attaches, and asks every optimizer for its parameters."""
    done = desk.run(
        "--",
        sys.executable,
        desk.script(TRAINING.replace("Linear(8, 8)", "Linear(8, 8).cuda()").replace("ones(2, 8)", "ones(2, 8).cuda()")),
    )
    assert done.returncode == 0 and "failed inside" not in done.stderr, done.stderr
    assert any(isinstance(message, messages.Piece) and message.kind == "window" for message in collector.messages)


def test_all_ranks_of_a_torchrun_are_one_run_and_its_helpers_are_none(desk, collector):
    # Data loaders and torchrun itself import torch as well, but train nothing.
    script = desk.script(
        TRAINING
        + """
data = torch.utils.data.DataLoader(torch.arange(8).float(), batch_size=4, num_workers=2, multiprocessing_context="fork")
assert len(list(data)) == 2
"""
    )
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d"]
    done = desk.run("--", sys.executable, *torchrun, "--rdzv-endpoint", "127.0.0.1:0", script)
    assert done.returncode == 0, done.stderr
    sessions = attached_in(collector)
    assert sorted(session.rank for session in sessions.values()) == [0, 1]
    assert {session.world_size for session in sessions.values()} == {2}
    assert len({batch.run for batch in collector.batches}) == 1


def test_a_training_without_an_optimizer_is_a_run_with_all_its_steps(desk, collector):
    script = desk.script(
        """
import torch
from torch import nn
model = nn.Linear(8, 2)
for _ in range(5):
    model.zero_grad()
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-0.1)
"""
    )
    done = desk.run("--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert len(attached_in(collector)) == 1
    assert sum(m.rows for m in collector.messages if isinstance(m, messages.Block) and m.stream == "steps") == 5


def test_a_training_by_autograd_grad_alone_is_a_run(desk, collector):
    """The functions stay the same objects, whoever imported them, and get their own code back."""
    script = desk.script(
        """
import inspect
import torch
from torch.autograd import backward, grad
assert list(inspect.signature(grad).parameters)[:2] == ["outputs", "inputs"]
weight = torch.ones(3, requires_grad=True)
for _ in range(4):
    loss = (weight * torch.arange(3.0) - 1).square().sum()
    (slope,) = grad(loss, weight, retain_graph=False)
    with torch.no_grad():
        weight -= 0.1 * slope
assert torch.autograd.grad is grad and torch.autograd.backward is backward
assert list(inspect.signature(backward).parameters)[:2] == ["tensors", "grad_tensors"]
assert not hasattr(grad, "__wrapped__")
assert inspect.getsource(grad).startswith("def grad(")
print(weight.tolist())
"""
    )
    done = desk.run("--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert len(attached_in(collector)) == 1
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == alone.stdout


def test_a_compiler_that_traces_a_backward_pass_begins_no_training(desk, collector):
    """AOTAutograd calls torch.autograd.grad with fake tensors as soon as the model is called."""
    script = desk.script(
        """
import torch
model = torch.compile(torch.nn.Linear(8, 8), backend="aot_eager")
print(model(torch.ones(2, 8)).shape)
"""
    )
    done = desk.run("--", sys.executable, script)
    assert done.returncode == 0 and "torch.Size([2, 8])" in done.stdout, done.stderr
    assert attached_in(collector) == {}


def test_an_attach_within_a_compiled_function_is_not_compiled(desk, collector):
    script = desk.script(
        """
import torch
import torch._dynamo.utils
def slope(x):
    return torch.autograd.grad((x * x).sum(), x)[0] * 2
print(torch.compile(slope, backend="eager")(torch.arange(3.0, requires_grad=True)).tolist())
assert torch._dynamo.utils.counters["frames"]["total"] < 20, torch._dynamo.utils.counters["frames"]
"""
    )
    done = desk.run("--", sys.executable, script)
    assert done.returncode == 0 and "[0.0, 4.0, 8.0]" in done.stdout, done.stderr
    assert len(attached_in(collector)) == 1


INFERENCE = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda().eval()
kept = []
with torch.no_grad():
    for _ in range(100):
        kept.append(model(torch.ones(2, 8, device="cuda")))
print("vramscope.agent" in sys.modules)
"""


@pytest.mark.gpu
def test_a_program_that_only_calls_a_model_on_a_gpu_is_a_run(desk, collector, emulated_gpu):
    done = desk.run("--", sys.executable, desk.script(INFERENCE))
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr
    assert len(attached_in(collector)) == 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    "change", [("range(100)", "range(15)"), (".cuda()", ""), ("import sys", "is_helper = 1; import sys")]
)
def test_few_calls_or_calls_on_the_cpu_are_no_run(desk, collector, emulated_gpu, change):
    """The third program is a helper that the command starts: a training's own evaluation server, say."""
    script = INFERENCE.replace(*change)
    if not change[1]:
        script = script.replace('device="cuda"', 'device="cpu"') + "torch.ones(1).cuda()\n"
    path = desk.script(script, "helper.py")
    if "is_helper" in script:
        path = desk.script(f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {path!r}]).returncode)")
    done = desk.run("--", sys.executable, path)
    assert done.returncode == 0 and done.stdout == "False\n", done.stderr
    assert attached_in(collector) == {}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "block", ["torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)", "Capture()"]
)
def test_calls_on_fake_tensors_or_in_a_capture_are_no_run(desk, collector, emulated_gpu, block):
    """Nothing is attached between the kernels of a CUDA graph."""
    script = INFERENCE.replace("torch.no_grad():", f"torch.no_grad(), {block}:").replace(
        "kept = []",
        """kept = []
import contextlib, torch._subclasses.fake_tensor
@contextlib.contextmanager
def Capture():
    torch.cuda.is_current_stream_capturing = lambda: True
    yield
""",
    )
    done = desk.run("--", sys.executable, desk.script(script))
    assert done.returncode == 0 and done.stdout == "False\n", done.stderr
    assert attached_in(collector) == {}


@pytest.mark.gpu
def test_a_forked_child_that_only_infers_is_no_run(desk, collector, emulated_gpu):
    script = f"import os, torch\nif os.fork():\n    os.wait()\n    os._exit(0)\n{INFERENCE}"
    done = desk.run("--", sys.executable, desk.script(script))
    assert done.returncode == 0 and done.stdout == "False\n", done.stderr
    assert attached_in(collector) == {}


@pytest.mark.gpu
def test_a_program_that_ends_its_own_session_is_not_attached_again(desk, collector, emulated_gpu):
    own = INFERENCE.replace("kept = []", "kept = []\nfrom vramscope import agent\nagent.attach()\nagent.detach()")
    done = desk.run("--", sys.executable, desk.script(own))
    assert done.returncode == 0, done.stderr
    assert len(attached_in(collector)) == 1


@pytest.mark.gpu
def test_a_training_after_many_calls_of_its_model_has_all_its_steps(desk, collector, emulated_gpu):
    """The models of an evaluation before the training are known; its window is dropped, and another one has the first steps."""
    training = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    done = desk.run("--", sys.executable, desk.script(INFERENCE + training))
    assert done.returncode == 0, done.stderr
    assert len(attached_in(collector)) == 1
    assert sum(m.rows for m in collector.messages if isinstance(m, messages.Block) and m.stream == "steps") == 5
    windows = {m.artifact for m in collector.messages if isinstance(m, messages.Piece) and m.kind == "window"}
    assert len(windows) == 1


@pytest.mark.gpu
def test_a_program_that_runs_out_of_memory_before_its_optimizer_is_a_run(desk, collector, emulated_gpu):
    script = desk.script(
        "import torch\ntorch.cuda.set_per_process_memory_fraction(1e-3)\ntorch.ones(1 << 34, device='cuda')\n"
    )
    done = desk.run("--", sys.executable, script)
    assert done.returncode == 1
    assert done.stderr.count("torch.OutOfMemoryError: ") == 1, "the error is shown once, as without the agent"
    [ended] = [message for message in collector.messages if isinstance(message, messages.Ended)]
    assert (ended.state, ended.error_type) == ("failed", "OutOfMemoryError")
    assert any(isinstance(message, messages.Piece) and message.kind == "oom" for message in collector.messages)


def test_an_error_that_is_not_about_memory_makes_no_run(desk, collector):
    done = desk.run("--", sys.executable, desk.script("import torch\nraise ValueError('x')\n"))
    assert done.returncode == 1 and done.stderr.endswith("ValueError: x\n")
    assert not attached_in(collector)


# --- where and when it attaches -----------------------------------------------------------------------------------


def test_it_attaches_when_the_first_optimizer_is_made_and_only_then(desk):
    desk.stand_ins()
    done = desk.python(
        """
        import torch
        plain = torch.optim.Optimizer.__init__.__wrapped__
        print("imported", torch.optim.Optimizer.__init__.__doc__ == plain.__doc__)
        class Mine(torch.optim.Optimizer):
            def __init__(self, lr):
                super().__init__([], lr=lr)
        Mine(2)
        Mine(3)
        print(torch.optim.Optimizer.__init__ is plain)
        """
    )
    assert done.stdout.splitlines() == ["imported True", "made 2", "attached", "made 3", "True"], done.stderr
    assert done.stderr == ""


def test_importing_torch_alone_makes_no_run(desk):
    desk.stand_ins()
    done = desk.python("import torch, sys; print('vramscope' in sys.modules)")
    assert done.stdout == "False\n"


def test_a_process_without_torch_pays_next_to_nothing(desk):
    desk.stand_ins()
    watched = desk.python("import sys; print(*sys.modules)").stdout.split()
    del desk.environ["PYTHONPATH"]
    plain = desk.python("import sys; print(*sys.modules)").stdout.split()
    more = set(watched) - set(plain)
    assert all(name.partition(".")[0] in ("sitecustomize", "importlib", "warnings", "_py_warnings") for name in more)


def test_a_switch_turns_it_off(desk):
    desk.stand_ins()
    desk.environ["VRAMSCOPE_DISABLED"] = "1"
    done = desk.python("import torch; torch.optim.Optimizer([])")
    assert (done.stdout, done.stderr) == ("made 1\n", "")


def test_the_sitecustomize_that_was_there_before_still_runs(desk):
    desk.stand_ins()
    desk.script("print('the other one'); import sys; sys.marked = True", "path/sitecustomize.py")
    done = desk.python(
        "import sys, sitecustomize, torch; print(sys.marked, sitecustomize.__file__); torch.optim.Optimizer([])"
    )
    lines = done.stdout.splitlines()
    assert lines == ["the other one", f"True {desk.folder / 'path' / 'sitecustomize.py'}", "made 1", "attached"]


def test_a_broken_sitecustomize_is_reported_as_python_reports_it(desk):
    desk.stand_ins()
    desk.script("raise RuntimeError('theirs')", "path/sitecustomize.py")
    done = desk.python("import torch; torch.optim.Optimizer([])")
    assert "Error in sitecustomize" in done.stderr
    assert done.stdout == "made 1\nattached\n"


def test_a_python_without_the_package_reports_it_and_trains(desk):
    desk.stand_ins()
    desk.script("raise ImportError('No module named msgspec')", "path/vramscope/agent.py")
    done = desk.python("import torch; torch.optim.Optimizer([])")
    assert done.stdout == "made 1\n"
    assert done.stderr.startswith("vramscope: not attached, because ")
    assert "No module named msgspec" in done.stderr


def test_a_torch_that_fails_to_import_fails_as_without_us(desk):
    desk.stand_ins()
    desk.script("raise OSError('libcudart.so.12: cannot open')", "path/torch/optim/optimizer.py")
    done = desk.python("import torch")
    assert done.returncode == 1
    assert "OSError: libcudart.so.12: cannot open" in done.stderr


def test_a_torch_of_another_shape_goes_unwatched(desk):
    desk.stand_ins()
    desk.script("Optimizer = None\n", "path/torch/optim/optimizer.py")
    done = desk.python("import torch; print('fine')")
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_the_source_of_torch_can_still_be_read(desk):
    desk.stand_ins()
    done = desk.python(
        """
        import inspect, pickle, sys, torch
        module = sys.modules["torch.optim.optimizer"]
        print(inspect.getsource(module)[:15], type(module.__loader__).__name__, "exec_module" in vars(module.__loader__))
        print(inspect.signature(torch.optim.Optimizer))
        """
    )
    assert done.stdout.splitlines() == ["class Optimizer SourceFileLoader False", "(parameters, lr=1)"], done.stderr


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_a_python_without_environment_runs_as_before(desk, option):
    desk.stand_ins()
    done = desk.python("print('ran')", option)
    assert (done.returncode, done.stdout) == (0, "ran\n")


# --- the command --------------------------------------------------------------------------------------------------


def test_the_child_gets_its_settings_and_a_run_id_of_its_own():
    settings = Settings.from_environment({}, project="p", run_name="n", tags=["a", "b"], server="http://host")
    child = launch.child_environment({"PYTHONPATH": "/x", "HOME": "/h"}, settings, ["python", "t.py"])
    assert child["PYTHONPATH"] == f"{launch.AUTOSTART}{os.pathsep}/x"
    assert (child["VRAMSCOPE_PROJECT"], child["VRAMSCOPE_RUN_NAME"], child["VRAMSCOPE_TAGS"]) == ("p", "n", "a,b")
    assert (child["VRAMSCOPE_SERVER"], child["HOME"]) == ("http://host", "/h")
    assert len(child["VRAMSCOPE_RUN_ID"]) == 16
    again = launch.child_environment(child, Settings.from_environment(child), ["python", "t.py"])
    assert again["PYTHONPATH"] == child["PYTHONPATH"]
    assert again["VRAMSCOPE_RUN_ID"] == child["VRAMSCOPE_RUN_ID"]


def test_the_current_folder_does_not_slip_into_the_path():
    child = launch.child_environment({}, Settings(), ["python"])
    assert child["PYTHONPATH"] == str(launch.AUTOSTART)


@pytest.mark.parametrize(
    ("environ", "command", "makes_one"),
    [
        ({}, ["torchrun", "--nproc-per-node", "8", "train.py"], True),
        ({}, ["torchrun", "--nnodes", "1", "train.py"], True),
        ({}, ["torchrun", "--nnodes=2", "train.py"], False),
        ({}, ["torchrun", "--nnodes", "1:4", "train.py"], False),
        ({}, ["accelerate", "launch", "--num_machines", "2", "train.py"], False),
        ({"SLURM_NTASKS": "8"}, ["python", "train.py"], False),
        ({"SLURM_NTASKS": "1"}, ["python", "train.py"], True),
        ({"WORLD_SIZE": "2"}, ["python", "train.py"], False),
    ],
)
def test_no_run_id_is_made_if_ranks_start_separately(environ, command, makes_one):
    child = launch.child_environment(environ, Settings(), command)
    assert ("VRAMSCOPE_RUN_ID" in child) == makes_one


def test_the_command_replaces_the_process(desk):
    script = desk.script(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
        print(os.getpid(), flush=True)
        time.sleep(30)
        """
    )
    words = [*RUN, "--", sys.executable, script]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, env=desk.environ, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 42


def test_an_interrupt_ends_it_as_it_ends_python(desk):
    script = desk.script("import time; print('go', flush=True); time.sleep(30)")
    pipe = subprocess.PIPE
    words = [*RUN, "--", sys.executable, script]
    process = subprocess.Popen(words, env=desk.environ, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors


def test_a_pipe_that_breaks_ends_the_command_as_in_any_shell(desk):
    done = desk.run("--", "sh", "-c", "kill -PIPE $$; echo survived")
    assert (done.returncode, done.stdout) == (-signal.SIGPIPE, "")


@pytest.mark.parametrize("words", [[], ["--"], ["--project", "p", "--"]])
def test_without_a_command_usage_is_printed(desk, words):
    done = desk.run(*words)
    assert done.returncode == 2
    assert "usage: vramscope run" in done.stderr
    assert "vramscope run -- python train.py" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--server", "nonsense"], "server: saw 'nonsense'"),
        (["--interval-ms", "0"], "interval_ms: saw '0'"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_wrong_arguments_are_reported_before_the_start(desk, words, expected):
    done = desk.run(*words, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_a_missing_command_is_reported(desk):
    done = desk.run("--", "no-such-command-anywhere")
    assert done.returncode == 127
    assert "cannot run no-such-command-anywhere: No such file or directory" in done.stderr


def test_a_script_as_command_is_reported_with_a_hint(desk):
    script = desk.script("print('hello')")
    done = desk.run("--", script)
    assert done.returncode == 127
    assert f"did you mean: python {script}?" in done.stderr


def test_the_dashes_may_be_left_out(desk):
    done = desk.run("--project", "p", "sh", "-c", "echo $VRAMSCOPE_PROJECT $0", "--project")
    assert (done.returncode, done.stdout) == (0, "p --project\n")


def test_dashes_of_the_command_stay_with_the_command(desk):
    done = desk.run("--", "sh", "-c", 'echo "$@"', "sh", "--", "a")
    assert done.stdout == "-- a\n"


def test_disabled_runs_the_command_and_reports_it(desk):
    done: Any = desk.run("--", "echo", "ran", VRAMSCOPE_DISABLED="1")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "runs without the agent" in done.stderr


def test_a_wrong_option_stops_the_command_a_variable_does_not(desk):
    done = desk.run("--", "sh", "-c", "echo $VRAMSCOPE_SERVER", VRAMSCOPE_SERVER="ftp://host")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ftp://host\n", "")
    done = desk.run("--server", "ftp://host", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "server: saw 'ftp://host'; expected an address" in done.stderr
