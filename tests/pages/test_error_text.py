"""The text of an error is explained where a newcomer looks: on the first page, without a run and without a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sender
from legibility import assert_legible

TEXT = (
    "Traceback (most recent call last):\n"
    '  File "/home/ada/train.py", line 87, in <module>\n    loss.backward()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which "
    "1.04 GiB is free. Process 3211 has 22.60 GiB memory in use. Of the allocated memory 19.72 GiB is allocated by PyTorch, "
    "and 2.41 GiB is reserved by PyTorch but unallocated."
)


def paste(page: Any, text: str) -> Any:
    """Paste into the field, as Ctrl+V does. Returns where the answer will be."""
    field = page.get_by_label("Text of an out-of-memory error")
    field.wait_for()  # a hidden field takes no focus
    field.focus()
    page.evaluate(
        """(text) => {
          const data = new DataTransfer();
          data.setData("text/plain", text);
          document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
          document.execCommand("insertText", false, text);
        }""",
        text,
    )
    return page.locator(".error-text-result")


@pytest.mark.parametrize("path", ["/runs", "/snapshots"])
def test_a_pasted_error_is_explained_at_once(page: Any, own_server: Callable[..., Any], path: str) -> None:
    page.goto(f"{own_server().url}{path}")
    answer = paste(page, TEXT)
    answer.locator("[data-cause=fragmentation]").wait_for()
    words = answer.inner_text()
    assert "2.41 GiB are reserved and unused" in words
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in words
    assert "process 3211" in words and "22.6 GiB" in words
    assert_legible(page)


def test_a_text_without_an_error_and_an_empty_one(page: Any, own_server: Callable[..., Any]) -> None:
    page.goto(f"{own_server().url}/runs")
    answer = paste(page, "Epoch 1: loss 0.3\nall is well")
    answer.get_by_text("No known out-of-memory error.").wait_for()
    page.get_by_label("Text of an out-of-memory error").fill("")
    page.get_by_role("button", name="Explain").click()
    answer.get_by_text("No known").wait_for(state="detached")


def test_the_tab_of_a_run_without_an_error_explains_others(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}/oom")
    paste(page, TEXT).locator("[data-cause=fragmentation]").wait_for()


def test_an_error_without_a_record_is_explained_by_its_text(page: Any, server: Any) -> None:
    """The agent sent the exception's message, but no record came: that message says something, too."""
    page.goto(f"{server.url}/runs/{sender.TOO_LARGE.run}/oom")
    answer = page.locator(".error-text-result")
    answer.locator(".verdict").wait_for()
    assert "2.50 GiB" in answer.inner_text()
    assert "Tried to allocate 2.50 GiB" in page.get_by_label("Text of an out-of-memory error").input_value()
