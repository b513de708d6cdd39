"""Which package may import which (docs/architecture.md), read from the source without running it."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AGENT = sorted((ROOT / "agent" / "vramscope").rglob("*.py"))
SERVER = sorted((ROOT / "backend" / "vramscope_server").rglob("*.py"))

# What the agent may need at import time, and what it may reach for when the host program has it.
AGENT_PACKAGES = {"vramscope", "msgspec", "httpx", "pynvml"}
TABLES = {"numpy", "pandas", "polars", "plotly"}  # results of the client
FRAMEWORKS = {"torch", "transformers", "lightning", "pytorch_lightning", "lightning_fabric", "accelerate", "ray"}

# Packages of the agent from top to bottom. An import may only go down, or stay within its package.
LAYERS = (
    {"__main__", "callbacks", "client"},
    {
        "agent",
        "session",
        "session_parts",
        "launch",
        "measured_test",
        "measurement",
        "notebook",
        "notebook_chart",
        "notebook_view",
    },
    {"leaks", "oom", "recording", "profiler", "techniques", "metrics", "dry_run"},
    {"integrations", "sampling", "trackers"},
    {"memory", "steps", "transport"},
    {"process", "guard", "settings", "setting_values"},
    {"oom_diagnosis"},
    {"protocol"},
)
# Packages of one layer that may import one another; nothing else may.
WITHIN_A_LAYER = {
    ("notebook", "measurement"), ("notebook", "notebook_view"), ("notebook_view", "notebook_chart"),
    ("measured_test", "measurement"), ("measured_test", "session"),
    ("agent", "session"), ("session", "session_parts"), ("session_parts", "session"), ("oom", "leaks"), ("memory", "steps"),
    ("techniques", "leaks"), ("steps", "memory"), ("process", "guard"), ("process", "settings"), ("settings", "setting_values"),
    ("integrations", "sampling"),
}  # fmt: skip

# What the server may import of the agent. Two of its commands run the agent.
SERVER_TAKES = {"vramscope.protocol", "vramscope.oom_diagnosis", "vramscope.__version__"}
COMMANDS_TAKE = SERVER_TAKES | {
    f"vramscope.{m}"
    for m in (
        "launch",
        "measured_test",
        "measurement",
        "setting_values",
        "settings",
        "transport.spool",
        "transport.sender",
        "transport.sync",
        "transport.tls",
    )
}

# Each package of the server: which other packages it may import, and which third-party ones (None: any of the extra `server`).
ROOMS: dict[str, tuple[set[str], set[str] | None]] = {
    "answers": (set(), {"msgspec", "typing_extensions"}),
    "api": (
        {
            "answers",
            "artifact_store",
            "store",
            "analysis",
            "figures",
            "settings",
            "services",
            "caller",
            "request_checks",
            "intake",
            "notifications",
            "tokens",
            "live_events",
            "latest_samples",
            "recording_cache",
            "snapshots",
            "uploads",
            "whatif_jobs",
            "oidc",
            "reports",
            "tables",
            "demo_run",
        },
        None,
    ),
    "services.py": (
        {
            "answers",
            "artifact_store",
            "store",
            "settings",
            "intake",
            "send_interval",
            "notifications",
            "tokens",
            "live_events",
            "shared_events",
            "latest_samples",
            "forecast_watch",
            "proxy_users",
            "oidc",
            "recording_cache",
            "snapshots",
            "whatif_jobs",
            "demo_run",
            "metrics",
        },
        None,
    ),
    "metrics": (
        {"latest_samples", "store", "analysis.peak_bound"},
        {"vramscope", "prometheus_client", "sqlalchemy", "opentelemetry"},
    ),
    "artifact_store": ({"store", "settings", "uploads"}, {"msgspec", "obstore"}),
    "snapshots.py": (
        {
            "artifact_store",
            "store",
            "snapshot_conversion",
            "uploads",
            "conversions",
            "analysis.snapshot_format.device_facts",
        },
        {"sqlalchemy"},
    ),
    "conversions.py": ({"artifact_store", "store", "snapshot_conversion"}, {"sqlalchemy"}),
    "uploads.py": (set(), set()),
    "snapshot_conversion.py": ({"analysis", "child_process", "numba_warmup"}, {"numpy"}),
    "child_process.py": (set(), set()),
    "memory_allocator.py": (set(), set()),
    "demo_run.py": (set(), set()),
    "recording_cache.py": ({"store", "analysis"}, {"vramscope"}),
    "whatif_jobs.py": ({"analysis.simulator.settings"}, {"msgspec"}),
    "request_checks.py": (
        {"api.problems", "caller", "intake", "store.token_rows", "store.project_scope"},
        None,
    ),  # a refusal has the form of the API's problems
    "proxy_users.py": ({"api.problems", "caller", "settings", "store.project_scope", "user_grants"}, {"starlette"}),
    "oidc.py": ({"caller", "settings", "user_grants"}, {"starlette", "httpx", "authlib", "joserfc"}),
    "user_grants.py": ({"store.project_scope", "store.token_rows"}, set()),
    "caller.py": ({"store.audit_log", "store.token_rows", "store.project_scope"}, set()),
    "notifications.py": (
        {"answers", "store", "analysis.number_format", "analysis.peak_bound", "known_messages", "message_claims"},
        {"apprise", "sqlalchemy"},
    ),
    "known_messages.py": (set(), set()),
    "message_claims.py": ({"answers", "store"}, {"sqlalchemy"}),
    "forecast_watch.py": (
        {"notifications", "known_messages", "store", "analysis.number_format"},
        {"sqlalchemy"},
    ),
    "send_interval.py": (set(), set()),
    "intake.py": ({"api.problems"}, {"vramscope", "anyio"}),
    "tokens.py": ({"store", "api.problems"}, None),
    "live_events.py": ({"answers", "store", "settings"}, None),
    "shared_events.py": ({"answers", "store", "live_events"}, {"sqlalchemy"}),
    "latest_samples.py": ({"answers", "analysis.array_types", "store"}, {"vramscope", "sqlalchemy"}),
    "settings.py": ({"user_grants"}, None),
    "store": ({"answers", "settings", "analysis", "migrations"}, None),
    "figures": ({"analysis"}, {"plotly", "numpy"}),
    "reports": ({"answers", "analysis", "figures"}, set()),
    "tables": ({"answers", "analysis"}, {"typing_extensions", "pyarrow"}),
    "analysis": (set(), {"numpy", "numba", "msgspec", "pyarrow"}),  # pyarrow is an extra of its own
    "migrations": ({"store"}, None),
}

# Imports that break a rule today. Each must go; an entry that is no longer needed fails the test.
NOT_YET: set[tuple[str, str]] = set()
# Modules that are still in an import cycle.
CYCLES_NOT_YET: set[str] = set()


@dataclass(frozen=True)
class Import:
    name: str  # in full, as in "vramscope.protocol.messages" or "torch.optim"
    line: int
    when_called: bool  # inside a function, not when the file is imported

    @property
    def package(self) -> str:
        return self.name.split(".")[0]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[Import]:
    return list(walk(parsed(path), path, when_called=False))


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


def listed(paths: Iterable[Path], allowed: Callable[[Path, Import], bool]) -> list[str]:
    """Imports that are not allowed."""
    return [
        f"{path.relative_to(ROOT)}:{one.line} imports {one.name}"
        for path in paths
        for one in imports(path)
        if not allowed(path, one)
    ]


def room_of(path: Path) -> str:
    """Package or file of the server in which a file lies."""
    return path.relative_to(ROOT / "backend" / "vramscope_server").parts[0]


def lies_in(name: str, rooms: set[str]) -> bool:
    """``vramscope_server.store.tables`` lies in ``store``, and the package itself in every room."""
    inside = name.removeprefix("vramscope_server").removeprefix(".")
    return not inside or any(f"{inside}.".startswith(f"{room}.") for room in rooms)


def test_the_agent_stays_light_inside_the_training():
    """At import time nothing but msgspec, httpx and pynvml; torch and the trainers inside functions; never the server."""

    def allowed(path: Path, one: Import) -> bool:
        packages = AGENT_PACKAGES | sys.stdlib_module_names
        if one.when_called or "callbacks" in path.parts:  # whoever imports a callback uses its framework
            packages |= FRAMEWORKS | (TABLES if "client" in path.parts else set())
        return one.package in packages

    assert not listed(AGENT, allowed)


def test_the_contract_imports_msgspec_alone():
    """Agent and server share the package ``protocol``: it brings nothing else with it."""

    def allowed(path: Path, one: Import) -> bool:
        return one.name.startswith("vramscope.protocol") or one.package in {"msgspec"} | sys.stdlib_module_names

    assert not listed(sorted((ROOT / "agent" / "vramscope" / "protocol").glob("*.py")), allowed)


def test_the_server_takes_of_the_agent_only_the_contract():
    """`vramscope run` and `vramscope sync` are the agent's work: the command line may hand over to it."""

    def allowed(path: Path, one: Import) -> bool:
        is_command = room_of(path) in ("cli", "__main__.py", "agent_commands.py", "pytest_plugin")
        return one.package != "vramscope" or lies_below(one.name, COMMANDS_TAKE if is_command else SERVER_TAKES)

    assert not listed(SERVER, allowed)


def lies_below(name: str, packages: set[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def layer_of(package: str) -> int:
    return next(number for number, packages in enumerate(LAYERS) if package in packages)


def test_each_package_of_the_agent_has_a_layer() -> None:
    there = {path.relative_to(ROOT / "agent" / "vramscope").parts[0].removesuffix(".py") for path in AGENT}
    assert there - {"__init__", "__main__", "autostart"} <= set().union(*LAYERS)


def test_imports_of_the_agent_go_down_the_layers() -> None:
    """Imports inside functions and for type checkers count too."""
    wrong = set()
    for module, targets in import_graph("agent", "vramscope").items():
        for target in targets:
            here, there = module.split(".")[1:2], target.split(".")[1:2]
            if not here or not there or here == there or "autostart" in here:
                continue
            above, below = here[0], there[0]
            if layer_of(above) > layer_of(below) or (
                layer_of(above) == layer_of(below) and (above, below) not in WITHIN_A_LAYER
            ):
                wrong.add((module, target))
    assert wrong == NOT_YET, f"new: {sorted(wrong - NOT_YET)}; no longer needed: {sorted(NOT_YET - wrong)}"


@pytest.mark.parametrize(("source", "package"), [("agent", "vramscope"), ("backend", "vramscope_server")])
def test_no_module_is_in_an_import_cycle(source: str, package: str) -> None:
    """Imports inside functions and for type checkers count too."""
    graph = import_graph(source, package)
    found = {module for cycle in cycles(graph) for module in cycle}
    known = {module for module in CYCLES_NOT_YET if module.split(".")[0] == package}
    assert found == known, f"new: {sorted(found - known)}; no longer needed: {sorted(known - found)}"


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


def import_graph(source: str, package: str) -> dict[str, set[str]]:
    """Module -> modules that it imports anywhere, type checkers' imports included."""
    root = ROOT / source
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / package).rglob("*.py")
        if "autostart" not in path.parts
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom):
                base = absolute(node, path)
                found |= {name if (name := f"{base}.{alias.name}") in files else base for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        graph[module] = (found & files.keys()) - {module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that import one another, directly or not (strongly connected components)."""
    reachable = {module: reached_from(module, graph) for module in graph}
    found: list[set[str]] = []
    for module in graph:
        if module in reachable[module] and not any(module in cycle for cycle in found):
            found.append({other for other in reachable[module] if module in reachable[other]})
    return found


def reached_from(module: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[module])
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting.extend(graph.get(one, ()))
    return seen


def test_no_room_of_the_server_imports_backwards():
    """api -> store, analysis, figures; figures -> analysis; analysis -> numpy alone."""
    own = {"vramscope_server", "vramscope"} | sys.stdlib_module_names

    def allowed(path: Path, one: Import) -> bool:
        room = room_of(path)
        rooms, packages = ROOMS[room]
        if one.package == "vramscope_server" and not lies_in(one.name, rooms | {room.removesuffix(".py")}):
            return False
        return packages is None or one.package in own | packages

    assert not listed([path for path in SERVER if room_of(path) in ROOMS], allowed)


def test_only_the_guard_catches_everything():
    """One broad except in the whole agent: what it swallows, it counts and tells."""
    broad = {"Exception", "BaseException"}
    wrong = [
        f"{path.relative_to(ROOT)}:{handler.lineno}"
        for path in AGENT
        if path.name != "guard.py"
        for handler in ast.walk(parsed(path))
        if isinstance(handler, ast.ExceptHandler)
        and (handler.type is None or broad & {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)})
    ]
    assert not wrong
