"""Every page looks as stored, in two widths and two themes, with no data, a little, many runs and much."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contact_sheet import SCENES, scene
from page_pictures import STORED, Camera

UPDATE = "look at the contact sheet; if the pages are right: python tests/pages/page_pictures.py"
MOST_STORED_BYTES = 3 << 20


@pytest.fixture(scope="module")
def camera(chromium: Any) -> Iterator[Camera]:
    made = Camera(chromium)
    yield made
    made.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "much" else []) for name in SCENES]
)
def test_pages_look_as_stored(camera: Camera, name: str, tmp_path: Path) -> None:
    """The scene with much data takes minutes: it runs at night."""
    different = []
    with scene(name) as shown:
        for page in shown.pages:
            for picture in camera.pictures(shown, page):
                if not picture.stored.exists():
                    difference: str | None = "not stored"
                else:
                    difference = camera.difference(picture.stored.read_bytes(), picture.content)
                if difference:
                    (tmp_path / picture.name).write_bytes(picture.content)
                    different.append(f"{picture.name}: {difference}")
    assert not different, "\n".join([*different, f"pictures of now: {tmp_path}", UPDATE])


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
