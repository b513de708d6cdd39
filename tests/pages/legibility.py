"""What a page must be on a wide screen and a narrow one, in light and in dark: nothing runs over, nothing hinders a reader.

The rules for readers with a screen reader, a keyboard or weak eyes are those of axe-core, WCAG's AA among them.
"""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from waiting import eventually

WIDTHS = (1440, 400)

# Texts that lie on one another, or below the border of a button.
OVERLAPS = """() => {
  const boxes = [];
  for (const element of document.querySelectorAll("main *")) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3 && node.textContent.trim());
    if (!texts.length || !element.checkVisibility()) continue;
    if (element.closest("svg, .scroll, .offscreen, vs-chart, .compare-bar")) continue;
    for (const text of texts) {
      const range = document.createRange();
      range.selectNodeContents(text);
      for (const { left, right, top, bottom } of range.getClientRects()) {
        const box = { left, right, top, bottom };
        for (let at = element; at && at !== document.body; at = at.parentElement) {
          if (getComputedStyle(at).overflowX === "visible") continue;
          const clip = at.getBoundingClientRect();
          box.left = Math.max(box.left, clip.left);
          box.right = Math.min(box.right, clip.right);
        }
        if (box.right - box.left > 2) boxes.push([box, element]);
      }
    }
  }
  const poor = [];
  boxes.forEach(([a, first], i) => boxes.slice(i + 1).forEach(([b, second]) => {
    if (first.contains(second) || second.contains(first)) return;
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 3 && high > 5) poor.push(`${first.textContent.slice(0, 20)} / ${second.textContent.slice(0, 20)}`);
  }));
  for (const button of document.querySelectorAll("main :is(button, .button)")) {
    if (!button.checkVisibility() || button.closest("svg, .scroll, vs-chart, .compare-bar")) continue;
    const a = button.getBoundingClientRect();
    for (const [b, element] of boxes) {
      if (button.contains(element) || element.contains(button)) continue;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 3 && high > 2) poor.push(`${element.textContent.slice(0, 20)} below ${button.textContent.slice(0, 20)}`);
    }
  }
  return poor;
}"""

# Titles of two axes of one chart that lie on one another.
TITLES = """() => [...document.querySelectorAll("vs-chart")].filter((chart) => chart.checkVisibility()).flatMap((chart) => {
  const boxes = [...chart.querySelectorAll(".infolayer [class^=g-y] text")].map((title) => [title, title.getBoundingClientRect()]);
  const common = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1)
    .filter(([, b]) => common(a, b, "left", "right") > 2 && common(a, b, "top", "bottom") > 2)
    .map(([other]) => `${one.textContent} / ${other.textContent}`));
})"""

# Labels of axes that reach beyond their chart.
CUT_OFF = """() => [...document.querySelectorAll("vs-chart .plot")].filter((plot) => plot.checkVisibility()).flatMap((plot) => {
  const { left, right } = plot.getBoundingClientRect();
  return [...plot.querySelectorAll(".xaxislayer-above text, .xaxislayer-below text")]
    .map((label) => [label.textContent, label.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.left < left - 1 || box.right > right + 1))
    .map(([text]) => text);
})"""

RULES = {"light": {}, "dark": {"runOnly": ["color-contrast", "link-in-text-block"]}}
"""Options of axe-core: in dark only the rules about colours, for the elements are the same."""

SETTLED = """() => [...document.querySelectorAll("vs-chart")].every((chart) => !chart.request)"""


SIDEWAYS = """() => [...document.querySelectorAll("main .scroll")]
  .filter((frame) => frame.checkVisibility() && frame.scrollWidth > frame.clientWidth + 1)
  .map((frame) => `${frame.textContent.slice(0, 60)}: ${frame.scrollWidth} of ${frame.clientWidth} pixels`)"""
"""Tables that have to be scrolled sideways."""


def assert_legible(page: Any) -> None:
    """Looks at the page that is open, at each width, and leaves it wide and light: opening it again would show the same."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        eventually(lambda: page.evaluate(SETTLED), what="charts that wait for nothing")
        eventually(
            lambda w=width: page.evaluate("document.documentElement.scrollWidth") <= w, what=f"it fits {width} pixels"
        )
        # A moment after the width changes, a table chooses its columns again.
        eventually(lambda: page.evaluate(OVERLAPS) == [], what=f"no text on another: {page.evaluate(OVERLAPS)}")
        eventually(
            lambda: page.evaluate(TITLES) == [], what=f"titles of axes that do not overlap: {page.evaluate(TITLES)}"
        )
        eventually(lambda: page.evaluate(CUT_OFF) == [], what=f"labels in whole: {page.evaluate(CUT_OFF)}")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = Axe().run(page, options={"resultTypes": ["violations"], **RULES[scheme]})
            assert not found.violations_count, f"{width} pixels, {scheme}: {found.generate_report()}"
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    page.emulate_media(color_scheme="light")
