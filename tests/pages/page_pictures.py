"""Small pictures of every page, to compare with stored ones: two widths, two themes, each with several amounts of data.

    python tests/pages/page_pictures.py                                # takes all again and stores them
    python tests/pages/page_pictures.py --scene little --page leaks    # only these

Characters are equal blocks (``block_font.py``), so that a machine's fonts do not matter and neither do digits; the clock stands
still; nothing moves. What remains is the layout, the colours and the charts. One chart is left out: its areas jump with each
sample, and the buckets of samples depend on when a run began. Pictures are reduced: they are for the test.
``contact_sheet.py`` takes those for people.
"""

from __future__ import annotations

import argparse
import base64
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "backend"))
sys.path.append(str(Path(__file__).parents[1]))

import block_font
from browsing import COMPILED_MS
from conftest import CHROMIUM, FLAGS
from contact_sheet import SCENES, THEMES, WIDTHS, Scene, scene
from waiting import eventually

STORED = Path(__file__).parent / "pictures"
TALLEST = 3000
"""Pixels of a page at most: the rest of a long page is left out."""
REDUCED = {1440: 4, 400: 2}
"""Each pixel of a picture is the mean of a square with this side."""
STILL_LOOKS = 9
"""Times in a row, a twentieth of a second apart, that a page must read the same."""
TILE = 12
"""Pictures are compared in squares with this side, in pixels."""
TOLERATED = 16.0
"""Mean difference of a square, of 255, up to which it counts as the same."""
TOLERATED_TILES = 0.02
"""Share of squares that may differ by more. Two takes of one page differed in at most 0.6 %; a line that moves all below it,
in a third and more."""

_STYLE = f"""@font-face {{ font-family: Blocks; src: url(data:font/ttf;base64,{base64.b64encode(block_font.font()).decode()}) }}
*, *::before, *::after {{ font-family: Blocks !important; font-weight: 400 !important; animation: none !important;
  transition: none !important; caret-color: transparent !important }}
[data-figure=fragmentation] .plot {{ visibility: hidden }}"""

_STILL = """async () => {
  await new Promise(requestAnimationFrame);  // a new theme is announced in a frame, on a busy machine up to 0.6 s later
  const { isWaiting } = await import("vramscope/charts/schedule.js");
  const isOnScreen = ({ top, bottom }) => top < innerHeight && bottom > 0;  // others are not drawn
  const charts = [...document.querySelectorAll("vs-chart")].filter(
    (chart) => chart.checkVisibility() && isOnScreen(chart.getBoundingClientRect()));
  const isDone = (chart) => !isWaiting(chart) && !chart.request && !chart.stale && !chart.hasWrongSize
    && (chart.dataset.draws || chart.hasAttribute("data-empty") || (chart.message?.textContent ?? "loading…") !== "loading…");
  if (!document.querySelector("main > *") || !charts.every(isDone)) return null;
  const busy = "main progress, main [aria-busy=true], main .loading, main .spinner";
  if ([...document.querySelectorAll(busy)].some((one) => one.checkVisibility())) return null;
  const working = /^(opening|compiling|computing|reading|replaying|preparing|predicting)\\b.*…$/m;
  if (working.test(document.querySelector("main").innerText)) return null;
  return `${document.documentElement.scrollHeight} ${document.querySelector("main").innerText}`;
}"""

_REDUCE = """async ([picture, by]) => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${picture}`)).blob());
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round(image.width / by), Math.round(image.height / by)];
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/webp", 0.6).split(",")[1];
}"""

_DIFFERENCES = """async ([first, second, tile]) => {
  const pixels = async (picture) => {
    const image = await createImageBitmap(await (await fetch(`data:image/webp;base64,${picture}`)).blob());
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height);
  };
  const [a, b] = [await pixels(first), await pixels(second)];
  const tiles = [];
  for (let y = 0; y < Math.min(a.height, b.height); y += tile) {
    for (let x = 0; x < Math.min(a.width, b.width); x += tile) {
      let [sum, count] = [0, 0];
      for (let j = y; j < Math.min(y + tile, a.height, b.height); j++) {
        for (let i = x; i < Math.min(x + tile, a.width, b.width); i++) {
          for (let c = 0; c < 3; c++) sum += Math.abs(a.data[4 * (j * a.width + i) + c] - b.data[4 * (j * b.width + i) + c]);
          count += 3;
        }
      }
      tiles.push([sum / count, x, y]);
    }
  }
  return { sizes: [[a.width, a.height], [b.width, b.height]], tiles };
}"""


@dataclass(frozen=True)
class Picture:
    """A picture of a page in one width and theme."""

    scene: str
    page: str
    width: int
    theme: str
    content: bytes
    """WebP"""

    @property
    def name(self) -> str:
        return f"{self.scene} {self.page} {self.width} {self.theme}.webp".replace(" ", "-")

    @property
    def stored(self) -> Path:
        return STORED / self.name


class Camera:
    """A browser page that takes and compares pictures."""

    def __init__(self, browser: Any) -> None:
        self._context = browser.new_context(bypass_csp=True, reduced_motion="reduce", timezone_id="UTC", locale="en-GB")
        self._context.add_init_script(
            "addEventListener('DOMContentLoaded', () => { const style = document.createElement('style');"
            f" style.textContent = {_STYLE!r}; document.head.append(style); document.fonts.load('16px Blocks') }})"
        )
        # Playwright's own clock also stops performance.now(), by which charts are drawn.
        self._context.add_init_script(
            "globalThis.Date = class extends Date { constructor(...parts) { super(...(parts.length ? parts : [stillAt])); }"
            " static now() { return stillAt; } }"
        )
        self._scene: Scene | None = None
        self._page = self._context.new_page()
        self.tools = self._context.new_page()

    def close(self) -> None:
        self._context.close()

    def pictures(self, shown: Scene, name: str) -> Iterator[Picture]:
        """Pictures of a page in both widths and themes."""
        page = self._page
        if shown is not self._scene:
            self._scene = shown
            page.add_init_script(f"globalThis.stillAt = {round(shown.filled_seconds) + 60}000")
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(shown.server.url + shown.pages[name])
        for width, least in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": least})
            for theme in THEMES:
                page.emulate_media(color_scheme=theme)
                self._wait(name)
                while self._grow():
                    self._wait(name)
                if self._shrink(least):
                    self._wait(name)
                taken = base64.b64encode(page.screenshot(animations="disabled", scale="css")).decode()
                content = base64.b64decode(self.tools.evaluate(_REDUCE, [taken, REDUCED[width]]))
                yield Picture(shown.name, name, width, theme, content)

    def _grow(self) -> bool:
        """Make the window as high as the page. A chart that comes into sight is drawn, and may make the page longer."""
        size = self._page.viewport_size
        needed = min(self._page.evaluate("document.documentElement.scrollHeight"), TALLEST)
        if needed <= size["height"]:
            return False
        self._page.set_viewport_size({"width": size["width"], "height": needed})
        return True

    def _shrink(self, least: int) -> bool:
        """Make the window no higher than the page: a chart that was not drawn yet may have been larger."""
        size = self._page.viewport_size
        if size["height"] <= least:
            return False
        self._page.set_viewport_size({"width": size["width"], "height": least})
        needed = max(least, min(self._page.evaluate("document.documentElement.scrollHeight"), TALLEST))
        self._page.set_viewport_size({"width": size["width"], "height": needed})
        return bool(needed != size["height"])

    def difference(self, before: bytes, now: bytes) -> str | None:
        """What differs between two pictures, in words. None: nothing above the tolerance."""
        pair = [base64.b64encode(one).decode() for one in (before, now)]
        found = self.tools.evaluate(_DIFFERENCES, [*pair, TILE])
        (wide, high), (wide_now, high_now) = found["sizes"]
        if wide != wide_now or abs(high - high_now) > 2:
            return f"{wide} x {high} pixels before, {wide_now} x {high_now} now"
        worst = max(found["tiles"])
        share = sum(tile[0] > TOLERATED for tile in found["tiles"]) / len(found["tiles"])
        if share <= TOLERATED_TILES:
            return None
        return f"{share:.1%} of the squares differ, most the one at {worst[1]}, {worst[2]} (by {worst[0]:.0f} of 255)"

    def _wait(self, name: str) -> None:
        """Wait until the page has not changed for half a second."""
        seen: list[Any] = []

        def still() -> bool:
            seen.append(self._page.evaluate(_STILL))
            return len(seen) > STILL_LOOKS and seen[-1] is not None and len(set(seen[-STILL_LOOKS:])) == 1

        eventually(still, COMPILED_MS / 1000, f"a page {name} that stands still")


def main() -> None:
    """Take and store the pictures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--scene", action="append", choices=list(SCENES), help="only these scenes")
    arguments.add_argument("--page", action="append", help="only pages of these names")
    chosen = arguments.parse_args()
    from playwright.sync_api import sync_playwright

    STORED.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name in chosen.scene or SCENES:
            with scene(name) as shown:
                camera = Camera(browser)
                for page in chosen.page or shown.pages:
                    began = time.monotonic()
                    for picture in camera.pictures(shown, page):
                        before = picture.stored.read_bytes() if picture.stored.exists() else None
                        difference = "new" if before is None else camera.difference(before, picture.content)
                        if difference:
                            picture.stored.write_bytes(picture.content)
                            print(f"{picture.name}: {difference}", flush=True)
                    print(f"{name} {page}: {time.monotonic() - began:.1f} s", flush=True)
                camera.close()
        browser.close()


if __name__ == "__main__":
    main()
