"""``backend/requirements.lock``, from which the server's image is built, fits ``pyproject.toml``. ``make lock`` renews it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

tomllib = pytest.importorskip("tomllib")  # Python 3.11 and later

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "backend" / "requirements.lock"
EXTRAS = ("server", "postgres", "parquet", "notify", "oidc", "otel", "s3")
"""Those that the image has."""


def locked() -> Iterator[tuple[Requirement, int]]:
    """Requirements of the lock file, each with the number of its hashes."""
    text = LOCK.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.lstrip().startswith("#"):
            yield Requirement(line.partition("--hash")[0].strip()), line.count("--hash=sha256:")


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [
        Requirement(line) for line in (*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra]))
    ]


def test_each_line_names_one_version_and_has_hashes() -> None:
    for requirement, hashes in locked():
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), f"{requirement} is no single version"
        assert hashes, f"{requirement.name} has no hash"
        assert requirement.url is None


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_what_is_declared_is_locked_in_a_version_that_fits(version: str) -> None:
    environment = {**default_environment(), "python_version": version, "python_full_version": f"{version}.0"}
    names = {}
    for requirement, _ in locked():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            names[requirement.name] = next(iter(requirement.specifier)).version
    for requirement in declared():
        assert requirement.name in names, f"{requirement.name} is not in backend/requirements.lock: make lock"
        assert requirement.specifier.contains(names[requirement.name]), (
            f"{requirement}: {names[requirement.name]}: make lock"
        )


def test_make_lock_takes_these_extras() -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert tuple(re.findall(r"--extra (\w+)", recipe)) == EXTRAS


def test_the_image_is_built_from_it() -> None:
    text = (ROOT / "backend" / "Dockerfile").read_text()
    assert "--require-hashes --requirement /wheels/requirements.lock" in text
    assert "--no-deps /wheels/vramscope-*.whl" in text


@pytest.mark.slow
def test_a_server_installed_from_it_starts(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--require-hashes", "--requirement", LOCK], check=True)
    subprocess.run([*install, "--no-deps", ROOT], check=True)
    started = subprocess.run(
        [python, "-m", "vramscope_server", "--version"], capture_output=True, text=True, cwd=tmp_path
    )
    assert started.returncode == 0, started.stderr
    checked = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
