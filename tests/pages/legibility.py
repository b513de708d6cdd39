"""What a page must be on a wide screen and a narrow one, in light and in dark: nothing runs over, all text can be read."""

from __future__ import annotations

from typing import Any

from browsing import eventually

WIDTHS = (1440, 400)

# Texts that stand out less than WCAG's AA asks, 4.5 to 1.
CONTRAST = """() => {
  const channel = (value) => { value /= 255; return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; };
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0.95) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("vs-app *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, .live, :disabled, .offscreen")) continue;
    const style = getComputedStyle(element);
    const color = parse(style.color);
    if (color.length === 4 && color[3] < 0.95) continue;
    const [a, b] = [light(color), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${element.className} ${element.textContent.trim().slice(0, 30)}`);
  }
  return poor;
}"""

# Texts that lie on one another.
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
  return poor;
}"""

SETTLED = """() => [...document.querySelectorAll("vs-chart")].every((chart) => !chart.request)"""


def assert_legible(page: Any) -> None:
    """Looks at the page that is open, at each width, and leaves it wide and light: opening it again would show the same."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        eventually(lambda: page.evaluate(SETTLED), what="charts that wait for nothing")
        eventually(
            lambda w=width: page.evaluate("document.documentElement.scrollWidth") <= w, what=f"it fits {width} pixels"
        )
        assert page.evaluate(OVERLAPS) == [], width
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(CONTRAST) == [], (width, scheme)
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    page.emulate_media(color_scheme="light")
