"""The conda recipe has the version, the dependencies and the commands of ``pyproject.toml``."""

from __future__ import annotations

import re
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
RECIPE = ROOT / "conda" / "meta.yaml"
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
    values = dict(re.findall(r'^\{% set (\w+) = "(.*)" %\}$', text, re.MULTILINE)) | {"PYTHON": "python"}
    text = re.sub(r"^\{%.*%\}$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\{\{ pin_subpackage\(.*\) \}\}", PIN, text)
    text = re.sub(r"\{\{ (\w+) \}\}", lambda found: values[found[1]], text)
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def output(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in recipe["outputs"] if one["name"] == name)


def as_conda(requirements: list[str]) -> set[str]:
    """Requirements as conda writes them: ``plotly >=7.1,<8``."""
    found = set()
    for text in requirements:
        one = Requirement(text)
        bounds = sorted(map(str, one.specifier), key=lambda bound: bound.startswith("<"))
        found.add(f"{CONDA_NAMES.get(one.name, one.name)} {','.join(bounds)}")
    return found


def test_the_version_is_that_of_the_package(recipe: dict[str, Any]) -> None:
    assert recipe["package"]["version"] == vramscope.__version__
    assert recipe["source"]["url"].endswith(f"vramscope-{vramscope.__version__}.tar.gz")


def test_the_agent_has_its_dependencies_and_no_more(recipe: dict[str, Any], project: dict[str, Any]) -> None:
    needs = output(recipe, "vramscope")["requirements"]
    python = f"python {project['requires-python']}"
    assert set(needs["run"]) == as_conda(project["dependencies"]) | {python}
    assert python in needs["host"] and "hatchling" in needs["host"]


def test_the_server_has_those_of_its_extra(recipe: dict[str, Any], project: dict[str, Any]) -> None:
    needs = output(recipe, "vramscope-server")["requirements"]
    assert set(needs["run"]) == as_conda(project["optional-dependencies"]["server"]) | {PIN}


def test_the_command_is_that_of_the_package(recipe: dict[str, Any], project: dict[str, Any]) -> None:
    ((name, target),) = project["scripts"].items()
    assert output(recipe, "vramscope")["build"]["entry_points"] == [f"{name} = {target}"]
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["summary"] == project["description"]
