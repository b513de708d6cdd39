"""Who may import whom: the house's import rules (docs/architecture.md), read from the source without running it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AGENT = sorted((ROOT / "agent" / "vramscope").rglob("*.py"))
SERVER = sorted((ROOT / "backend" / "vramscope_server").rglob("*.py"))

# What the agent may need at import time, and what it may reach for when the host program has it.
AGENT_PACKAGES = {"vramscope", "msgspec", "httpx", "pynvml"}
FRAMEWORKS = {"torch", "transformers", "lightning", "pytorch_lightning", "lightning_fabric", "accelerate"}

# What the server may take of the agent besides the contract, and where: two of its commands run the agent.
SERVER_TAKES = {
    "vramscope.protocol.messages",
    "vramscope.protocol.window",
    "vramscope.protocol.profile",
    "vramscope.protocol.oom_record",
    "vramscope.oom_diagnosis.message",
    "vramscope.oom_diagnosis.cause",
    "vramscope.oom_diagnosis.evidence",
    "vramscope.oom_diagnosis.facts",
    "vramscope.oom_diagnosis.growth",
    "vramscope.oom_diagnosis.demand",
    "vramscope.__version__",
}
COMMANDS_TAKE = SERVER_TAKES | {f"vramscope.{m}" for m in ("launch", "spool", "sender", "settings", "sync")}

# Each room of the server: which other rooms it stands on, and which packages (None: any of the extra `server`).
ROOMS: dict[str, tuple[set[str], set[str] | None]] = {
    "api": (
        {
            "store",
            "analysis",
            "figures",
            "settings",
            "house",
            "access",
            "tokens",
            "broadcaster",
            "recordings",
            "snapshots",
            "sweeps",
        },
        None,
    ),
    "house.py": ({"store", "settings", "tokens", "broadcaster", "recordings", "snapshots", "sweeps"}, None),
    "snapshots.py": ({"store", "conversion"}, {"sqlalchemy"}),
    "conversion.py": ({"analysis", "lifeline"}, {"numpy"}),
    "lifeline.py": (set(), set()),
    "recordings.py": ({"store", "analysis"}, {"vramscope"}),
    "sweeps.py": ({"analysis.simulator.settings"}, {"msgspec"}),  # what cannot be replayed is no fault of a job
    "access.py": ({"api.problems"}, None),  # a refusal is told as the API tells it
    "tokens.py": ({"store", "api.problems"}, None),
    "broadcaster.py": ({"store", "settings"}, None),
    "settings.py": (set(), None),
    "store": ({"settings", "analysis", "migrations"}, None),
    "figures": ({"analysis"}, {"plotly", "numpy"}),
    "analysis": (set(), {"numpy", "numba", "msgspec", "pyarrow"}),  # the last: an extra of its own
    "migrations": ({"store"}, None),
}


@dataclass(frozen=True)
class Import:
    name: str  # in full, as in "vramscope.protocol.messages" or "torch.optim"
    line: int
    when_called: bool  # inside a function, not when the file is imported

    @property
    def package(self) -> str:
        return self.name.split(".")[0]


def imports(path: Path) -> list[Import]:
    return list(walk(ast.parse(path.read_text()), path, when_called=False))


def walk(node: ast.AST, path: Path, when_called: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from walk(ast.Module(child.orelse, []), path, when_called)  # what only type checkers read is none
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, when_called)
        elif isinstance(child, ast.ImportFrom):
            base = absolute(child, path)
            for alias in child.names:
                yield Import(
                    f"{base}.{alias.name}" if names_module(base, alias.name) else base, child.lineno, when_called
                )
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, path, when_called or function)


def absolute(node: ast.ImportFrom, path: Path) -> str:
    if not node.level:
        return node.module or ""
    source = ROOT / "agent" if ROOT / "agent" in path.parents else ROOT / "backend"
    parts = path.relative_to(source).parts[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def names_module(base: str, name: str) -> bool:
    """Whether ``from base import name`` takes a module of ours, or the version of the package itself."""
    folders = [root / Path(*base.split(".")) for root in (ROOT / "agent", ROOT / "backend")]
    return (base == "vramscope" and name == "__version__") or any(
        (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists() for folder in folders
    )


def listed(path: Path, wrong: list[Import]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{i.line} imports {i.name}" for i in wrong]


def lies_in(name: str, rooms: set[str]) -> bool:
    """``vramscope_server.store.tables`` lies in ``store``, and the package itself in every room."""
    inside = name.removeprefix("vramscope_server").removeprefix(".")
    return not inside or any(f"{inside}.".startswith(f"{room}.") for room in rooms)


@pytest.mark.parametrize("path", AGENT, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_agent_stays_light_inside_the_training(path):
    """At import time nothing but msgspec, httpx and pynvml; torch and the trainers inside functions; never the server."""
    allowed = AGENT_PACKAGES | sys.stdlib_module_names
    wrong = [i for i in imports(path) if i.package not in (allowed | FRAMEWORKS if i.when_called else allowed)]
    assert not listed(path, wrong)


def test_the_contract_imports_msgspec_alone():
    """wire.py and window.py are what both sides share: they bring nothing else with them."""
    for name in ("wire.py", "window.py", "profile_tables.py"):
        path = ROOT / "agent" / "vramscope" / name
        found = [i for i in imports(path) if i.name != "vramscope.protocol.messages"]
        wrong = [i for i in found if i.package not in {"msgspec"} | sys.stdlib_module_names]
        assert not listed(path, wrong)


@pytest.mark.parametrize("path", SERVER, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_server_takes_of_the_agent_only_the_contract(path):
    """`vramscope run` and `vramscope sync` are the agent's work: the command line may hand over to it."""
    inside = path.relative_to(ROOT / "backend" / "vramscope_server").parts
    is_command = inside[0] in ("cli", "__main__.py")
    allowed = COMMANDS_TAKE if is_command else SERVER_TAKES
    wrong = [i for i in imports(path) if i.package == "vramscope" and i.name not in allowed]
    assert not listed(path, wrong)


def test_what_the_server_takes_of_the_agent_is_what_the_map_says():
    text = (ROOT / "docs" / "architecture.md").read_text()
    of_server = re.search(r"The server -> of the agent only its contracts \(([^)]+)\)", text)
    of_commands = re.search(r"and, for its commands, ([^;.]+)[;.]", text)
    for sentence, taken in (
        (of_server, SERVER_TAKES - {"vramscope.__version__"}),
        (of_commands, COMMANDS_TAKE - SERVER_TAKES),
    ):
        assert {f"vramscope.{name}" for name in re.findall(r"`(\w+)`", sentence.group(1))} == taken


@pytest.mark.parametrize(
    "path",
    [p for p in SERVER if p.relative_to(ROOT / "backend" / "vramscope_server").parts[0] in ROOMS],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_no_room_of_the_server_imports_backwards(path):
    """api -> store, analysis, figures; figures -> analysis; analysis -> numpy alone."""
    room = path.relative_to(ROOT / "backend" / "vramscope_server").parts[0]
    rooms, packages = ROOMS[room]
    own = {"vramscope_server", "vramscope"} | sys.stdlib_module_names
    wrong = [
        i
        for i in imports(path)
        if (i.package == "vramscope_server" and not lies_in(i.name, rooms | {room.removesuffix(".py")}))
        or (packages is not None and i.package not in own | packages)
    ]
    assert not listed(path, wrong)


@pytest.mark.parametrize("path", AGENT, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_guard_catches_everything(path):
    """One broad except in the whole agent: what it swallows, it counts and tells."""
    if path.name == "guard.py":
        return
    broad = {"Exception", "BaseException"}
    wrong = [
        handler.lineno
        for handler in ast.walk(ast.parse(path.read_text()))
        if isinstance(handler, ast.ExceptHandler)
        and (handler.type is None or broad & {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)})
    ]
    assert not wrong, f"{path.relative_to(ROOT)} catches everything in line {wrong}"
