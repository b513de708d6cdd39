"""The contact sheet: pictures of pages for whoever changes them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import contact_sheet


def test_pictures_of_a_page_are_named_and_shown_in_the_sheet(chromium: Any, server: Any, tmp_path: Path) -> None:
    shown = contact_sheet.Scene("empty", server, {"not found": "/no-such-page", "settings": "/settings"})
    chosen = argparse.Namespace(page=["not"], width=[400], theme=None)
    taken = list(contact_sheet.pictures(chromium, shown, tmp_path, chosen))
    assert taken == [("not found", 400, theme, f"empty-not-found-400-{theme}.png") for theme in contact_sheet.THEMES]
    pictures = [(tmp_path / name).read_bytes() for *_, name in taken]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures) and pictures[0] != pictures[1]
    html = contact_sheet.sheet([("empty", *one) for one in taken])
    assert html.count("<img") == 2 and "not found: empty" in html and 'src="empty-not-found-400-dark.png"' in html
