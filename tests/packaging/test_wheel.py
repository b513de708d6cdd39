"""The wheel, installed where there is no checkout: the agent alone is small, the server serves its pages."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ports import free_port

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from collector import Collector
from training import Arrived

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.xdist_group("packaging")  # one worker builds the wheel once


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=170, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def uv():
    found = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    return found or pytest.skip("uv is not installed: make setup does that")


@pytest.fixture(scope="session")
def wheel(uv, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    run(uv, "build", "--wheel", "--quiet", "--out-dir", out, ROOT)
    [wheel] = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def install(uv, wheel, tmp_path_factory):
    """``install("server")`` gives the Python of a fresh environment with ``vramscope[server]`` in it, and nothing else."""

    def install(extras: str = "") -> Path:
        folder = tmp_path_factory.mktemp("environment")
        run(uv, "venv", "--quiet", "--python", sys.executable, folder)
        python = folder / "bin" / "python"
        run(uv, "pip", "install", "--quiet", "--python", python, f"vramscope{extras} @ file://{wheel}")
        return python

    return install


@pytest.fixture
def elsewhere(tmp_path):
    """Options for a process that cannot see the checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {"cwd": tmp_path, "env": {**kept, "HOME": str(tmp_path)}}


def test_the_wheel_holds_the_packages_the_pages_and_the_licence(wheel):
    """And nothing of tests, examples or caches."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in ("vramscope/agent.py", "vramscope/py.typed", "vramscope_server/app.py"):
        assert wanted in names
    assert any(n.startswith("vramscope_server/frontend/") and n.endswith(".html") for n in names)
    assert any(n.startswith("vramscope_server/migrations/") for n in names)
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)
    assert {n.split("/")[0].split("-")[0] for n in names} == {
        "vramscope",
        "vramscope_emulated_gpu",
        "vramscope_server",
    }
    assert any(n.startswith("vramscope_emulated_gpu/src/") and n.endswith(".c") for n in names)
    assert "vramscope_server/cli/dryrun/cards.csv" in names
    assert not [n for n in names if "__pycache__" in n]


def test_the_agent_alone_brings_three_packages_and_no_torch(install, elsewhere):
    """`pip install vramscope` in a training's environment: it can be imported, and nothing heavy comes with it."""
    python = install()
    code = """
        import importlib.metadata, json, re, sys
        from vramscope import agent
        heavy = {"torch", "transformers", "lightning", "accelerate", "vramscope_server", "fastapi", "numpy", "sqlalchemy"}
        required = {re.match(r"[\\w-]+", r).group() for r in importlib.metadata.requires("vramscope") if "extra ==" not in r}
        print(json.dumps([callable(agent.attach), sorted(heavy & set(sys.modules)), sorted(required)]))
    """
    code = re.sub(r"^ {8}", "", code, flags=re.MULTILINE)
    assert json.loads(run(python, "-c", code, **elsewhere)) == [True, [], ["httpx", "msgspec", "nvidia-ml-py"]]


def link_torch(python: Path) -> None:
    """Put the installed PyTorch and what it requires into an environment, without the libraries that other tests need."""
    target = next((python.parent.parent / "lib").glob("python*/site-packages"))
    required = [Requirement(text) for text in importlib.metadata.requires("torch") or []]
    names = [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    kept = [name for name in names if not name.startswith(("nvidia", "cuda", "triton"))]
    kept += ["mpmath", "markupsafe"]  # of sympy and jinja2
    for name in ("torch", *kept):
        for file in importlib.metadata.files(name) or []:
            top = Path(file.parts[0])
            source = Path(importlib.metadata.distribution(name).locate_file(top))
            if top.name not in ("..", "__pycache__") and not (target / top).exists():
                (target / top).symlink_to(source)
    site = Path(importlib.metadata.distribution("torch").locate_file("")).resolve()
    for emulation in [*site.glob("*emulated[_-]gpu*"), site / "nvidia"]:  # where make setup has put it
        if emulation.exists() and "dist-info" not in emulation.name and not (target / emulation.name).exists():
            (target / emulation.name).symlink_to(emulation)


TRAINING = """
import importlib.util, json, torch
from vramscope import agent
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
session = agent.attach(model, name="fresh")
for _ in range(5):
    model(torch.zeros(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
agent.detach()
print(json.dumps([name for name in OTHERS if importlib.util.find_spec(name)]))
"""
OTHERS = (
    "transformers", "lightning", "accelerate", "peft", "ray", "wandb", "mlflow", "tensorboard", "IPython", "ipykernel", "mcp",
    "plotly", "pandas", "polars", "numpy", "fastapi", "vramscope_server.app",
)  # fmt: skip


@pytest.mark.gpu
def test_the_agent_runs_with_torch_and_its_three_packages_alone(install, elsewhere, tmp_path):
    """A training in an environment without any framework, tracker or server is watched to its end."""
    python = install()
    link_torch(python)
    with Collector() as collector:
        env = elsewhere["env"] | {"VRAMSCOPE_SERVER": collector.url, "VRAMSCOPE_SPOOL_DIR": str(tmp_path / "spool")}
        code = TRAINING.replace("OTHERS", repr([name for name in OTHERS if "." not in name]))
        done = subprocess.run(
            [python, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=170, cwd=tmp_path, env=env
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == [], "the environment has none of them"
        assert "Traceback" not in done.stderr and "stopped" not in done.stderr, done.stderr
        arrived = Arrived(collector)
        assert arrived.attached.name == "fresh"
        assert [row["step"] for row in arrived.rows("steps")] == [1, 2, 3, 4, 5]
        assert all(row["peak_allocated_bytes"] > 0 for row in arrived.rows("steps"))
        assert arrived.ended is not None and arrived.ended.state == "finished"


def test_without_torch_attach_leaves_the_program_alone(install, elsewhere):
    """A script that imports the agent where PyTorch is missing goes on."""
    code = "from vramscope import agent; session = agent.attach(); session.step(); agent.detach(); print('went on')"
    done = subprocess.run([install(), "-c", code], capture_output=True, text=True, timeout=60, **elsewhere)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_server_the_command_says_what_is_missing(install, elsewhere):
    """Somebody installed the agent alone and types `vramscope server`."""
    python = install()
    done = subprocess.run(
        [python.parent / "vramscope", "server"], capture_output=True, text=True, timeout=60, **elsewhere
    )
    assert done.returncode != 0
    assert "vramscope[server]" in done.stderr
    assert "Traceback" not in done.stderr
    helped = run(python.parent / "vramscope", "--help", **elsewhere)
    assert "vramscope run" in helped and "vramscope sync" in helped and "vramscope[server]" in helped


def test_the_server_serves_its_pages_from_the_wheel(install, elsewhere, tmp_path):
    """`pip install 'vramscope[server]'`, `vramscope server`: health, and the first page with what it refers to."""
    python = install("[server]")
    with running_server(python, elsewhere, tmp_path / "data") as address:
        assert json.loads(get(f"{address}/api/v1/health"))["status"] == "ok"
        page = get(f"{address}/").decode()
        assert "vramscope" in page
        references = re.findall(r'(?:src|href)="(/[^"#?]*)"', page)
        assert references
        for reference in references:
            assert get(address + reference), reference


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read()


class running_server:
    """A server of its own, at a port of its own, until the block ends."""

    def __init__(self, python: Path, options: dict, data: Path) -> None:
        environment = {**options["env"], "VRAMSCOPE_DATA_DIR": str(data)}
        self.log = data.parent / "server.log"
        self.process = subprocess.Popen(
            [python.parent / "vramscope", "server", "--port", str(free_port())],
            cwd=options["cwd"],
            env=environment,
            stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT,
        )
        self.address = f"http://127.0.0.1:{self.process.args[-1]}"

    def __enter__(self) -> str:
        for _ in range(300):
            try:
                get(f"{self.address}/api/v1/health")
                return self.address
            except urllib.error.URLError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        self.__exit__()
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
