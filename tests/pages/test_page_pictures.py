"""Every page looks as stored, in two widths and two themes, with no data, a little, many runs and much."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contact_sheet import SCENES, Scene, scene
from page_pictures import STORED, Camera

UPDATE = "look at the contact sheet; if the pages are right: python tests/pages/page_pictures.py"
MOST_STORED_BYTES = 3 << 20


@pytest.fixture(scope="module")
def camera(chromium: Any) -> Iterator[Camera]:
    made = Camera(chromium)
    yield made
    made.close()


def stored_pages(name: str) -> list[str]:
    """Pages of a scene of which there are stored pictures."""
    start, end = f"{name.replace(' ', '-')}-", "-1440-light"
    return sorted(file.stem[len(start) : -len(end)] for file in STORED.glob(f"{start}*{end}.webp"))


CASES = [
    pytest.param(name, page, id=f"{name}-{page}", marks=[pytest.mark.slow] if name == "much" else [])
    for name in SCENES
    for page in stored_pages(name)
]
"""Scene and page. The scene with much data takes minutes: it runs at night."""


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A scene, once for all of its pages."""
    with scene(request.param) as made:
        assert sorted(name.replace(" ", "-") for name in made.pages) == stored_pages(made.name), UPDATE
        yield made


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("shown", "page"), CASES, indirect=["shown"])
def test_a_page_looks_as_stored(camera: Camera, shown: Scene, page: str, tmp_path: Path) -> None:
    different = []
    (name,) = [name for name in shown.pages if name.replace(" ", "-") == page]
    for picture in camera.pictures(shown, name):
        difference = camera.difference(picture.stored.read_bytes(), picture.content)
        if difference:
            (tmp_path / picture.name).write_bytes(picture.content)
            different.append(f"{picture.name}: {difference}")
    assert not different, "\n".join([*different, f"pictures of now: {tmp_path}", UPDATE])


def test_each_scene_has_stored_pictures() -> None:
    assert all(stored_pages(name) for name in SCENES)


MOVED = """async (picture) => {
  const image = await createImageBitmap(await (await fetch(`data:image/webp;base64,${picture}`)).blob());
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  context.drawImage(image, 0, 60, image.width, image.height - 65, 0, 65, image.width, image.height - 65);
  return canvas.toDataURL("image/webp", 0.6).split(",")[1];
}"""


@pytest.mark.parametrize("page", ["little-run", "little-leaks", "empty-runs", "little-runs"])
def test_a_page_whose_lower_part_moved_by_a_line_is_found(camera: Camera, page: str) -> None:
    before = (STORED / f"{page}-1440-light.webp").read_bytes()
    moved = camera.tools.evaluate(MOVED, base64.b64encode(before).decode())
    assert "squares differ" in str(camera.difference(before, base64.b64decode(moved)))


def test_another_theme_and_another_height_are_found(camera: Camera) -> None:
    light, dark = ((STORED / f"empty-runs-1440-{theme}.webp").read_bytes() for theme in ("light", "dark"))
    assert camera.difference(light, light) is None
    assert camera.difference(light, dark) is not None
    other = (STORED / "empty-settings-1440-light.webp").read_bytes()
    assert "pixels before" in str(camera.difference(light, other))


def test_stored_pictures_are_few_and_small() -> None:
    stored = list(STORED.iterdir())
    assert sum(file.stat().st_size for file in stored) < MOST_STORED_BYTES
    assert {file.suffix for file in stored} == {".webp"}
