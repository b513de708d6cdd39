"""The conda recipe has the version, the dependencies and the commands of ``pyproject.toml``. At night rattler-build renders it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import vramscope

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "conda" / "recipe.yaml"
CONDA_NAMES = {"uvicorn": "uvicorn-standard", "prometheus-client": "prometheus_client"}
"""Packages that have another name on conda-forge; the first one's stands for its extra ``standard``."""
PIN = "PINNED"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """The recipe with its variables filled in."""
    text = RECIPE.read_text()
    values = yaml.safe_load(text)["context"] | {"PYTHON": "python"}
    text = re.sub(r"\$\{\{ pin_subpackage\(.*\) \}\}", PIN, text)
    text = re.sub(r"\$\{\{ (\w+) \}\}", lambda found: values[found[1]], text)
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def output(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in recipe["outputs"] if one["package"]["name"] == name)


def as_conda(requirements: list[str]) -> set[str]:
    """Requirements as conda writes them: ``plotly >=7.1,<8``."""
    found = set()
    for text in requirements:
        one = Requirement(text)
        bounds = sorted(map(str, one.specifier), key=lambda bound: bound.startswith("<"))
        found.add(f"{CONDA_NAMES.get(one.name, one.name)} {','.join(bounds)}")
    return found


def test_the_version_is_that_of_the_package(recipe: dict[str, Any]) -> None:
    assert recipe["recipe"]["version"] == vramscope.__version__
    assert recipe["source"]["url"].endswith(f"vramscope-{vramscope.__version__}.tar.gz")


def test_the_agent_has_its_dependencies_and_no_more(recipe: dict[str, Any], project: dict[str, Any]) -> None:
    needs = output(recipe, "vramscope")["requirements"]
    oldest = project["requires-python"]
    assert set(needs["run"]) == as_conda(project["dependencies"]) | {f"python {oldest}"}
    assert f"python {oldest.removeprefix('>=')}.*" in needs["host"] and "hatchling" in needs["host"]


def test_the_server_has_those_of_its_extra(recipe: dict[str, Any], project: dict[str, Any]) -> None:
    needs = output(recipe, "vramscope-server")["requirements"]
    assert set(needs["run"]) == as_conda(project["optional-dependencies"]["server"]) | {PIN}


def test_the_command_is_that_of_the_package(recipe: dict[str, Any], project: dict[str, Any]) -> None:
    ((name, target),) = project["scripts"].items()
    assert output(recipe, "vramscope")["build"]["python"]["entry_points"] == [f"{name} = {target}"]
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["summary"] == project["description"]


RENDER = """
import json, sys
from rattler_build import Stage0Recipe
print(json.dumps([one.recipe.to_dict() for one in Stage0Recipe.from_file(sys.argv[1]).render()]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rattler_build_renders_the_recipe(tmp_path: Path) -> None:
    """It needs no channel for that. A package was never built: the tests reach no channel."""
    tools = str(tmp_path / "tools")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, "py-rattler-build"], check=True
    )
    done = subprocess.run(
        [sys.executable, "-c", RENDER, str(RECIPE)],
        env=os.environ | {"PYTHONPATH": tools}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    agent, server = json.loads(done.stdout)
    assert (agent["package"]["name"], agent["build"]["noarch"]) == ("vramscope", "python")
    assert "python 3.10.*" in agent["requirements"]["host"]
    assert {"pin_subpackage": {"name": "vramscope", "exact": True}} in server["requirements"]["run"]
