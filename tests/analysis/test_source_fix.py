"""The source line with its fix: only where the line alone tells how, and then valid Python that keeps the same value."""

from __future__ import annotations

import ast

import pytest

from vramscope.protocol.series import FIXES
from vramscope_server.analysis.leaks.source_fix import fixed_lines


@pytest.mark.parametrize(
    ("source", "fix", "name", "fixed"),
    [
        ("    history.append(loss)", "item", "history", ["    history.append(loss.item())"]),
        ("history.append(loss.detach())", "item", "history", ["history.append(loss.item())"]),
        ("self.outputs.append(out['logits'])", "detach", "m.outputs", ["self.outputs.append(out['logits'].detach())"]),
        ("\ttotal += criterion(x, y)", "item", "total", ["\ttotal += criterion(x, y).item()"]),
        ("total = total + loss", "item", "total", ["total = total + loss.item()"]),
        ("cache[step] = features  # kept", "host", "cache", ["cache[step] = features.detach().cpu()  # kept"]),
        ("losses.append(a + b)", "item", "losses", ["losses.append((a + b).item())"]),
        ("größe.append(verlust)", "item", "größe", ["größe.append(verlust.item())"]),
        ("hidden = cell(x, hidden)", "carry", "hidden", ["hidden = cell(x, hidden)", "hidden = hidden.detach()"]),
        (
            "  out, self.state = self.rnn(x, self.state)",
            "carry",
            "model.state",
            ["  out, self.state = self.rnn(x, self.state)", "  self.state = self.state.detach()"],
        ),
    ],
)
def test_lines_that_tell_the_fix(source: str, fix: str, name: str, fixed: list[str]) -> None:
    assert fixed_lines(source, fix, name) == fixed
    for line in fixed:
        ast.parse(line.strip())


@pytest.mark.parametrize(
    "source",
    [
        "history.append((step, loss))",
        "history.append({'loss': loss})",
        "history.append([loss])",
        "history.append(f'{loss}')",
        "history.extend(losses)",
        "return history.append(",
        "for loss in losses: history.append(loss); total += loss",
        "loss = model(x)",
        "total = loss + total",
        "others.append(loss)",
        "",
    ],
)
def test_other_lines_get_no_diff(source: str) -> None:
    for fix in (*FIXES, "", "unheard of"):
        assert fixed_lines(source, fix, "history") == []
