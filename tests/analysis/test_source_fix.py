"""The source line with its fix: only where the line alone tells how, and then valid Python that keeps the same value."""

from __future__ import annotations

import ast

import pytest

from vramscope.protocol.series import FIXES
from vramscope_server.analysis.leaks.source_fix import fixed_lines, keeps_tensors_directly


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
        ("outs.append(out.cpu())", "detach", "outs", ["outs.append(out.cpu().detach())"]),
        ("states.append(h.clone())", "detach", "states", ["states.append(h.clone().detach())"]),
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
        "history.put(loss, timeout)",
        "history.insert(loss)",
        "history.append(" + "-" * 5000 + "loss)",
        "",
    ],
)
def test_other_lines_get_no_diff(source: str) -> None:
    for fix in (*FIXES, "", "carry"):
        assert fixed_lines(source, fix, "history") == []


@pytest.mark.parametrize(
    ("chain", "direct"),
    [
        (["global 'hidden'", "Tensor"], True),
        (["train.py:87 in train()", "local 'history'", "list[412]", "tensor float32[]"], True),
        (["local 'r' of main()", "Recorder.activations", "list[*]", "Tensor"], True),
        (["local 'results'", "dict[3]", "list[4]", "Tensor"], False),
        (["local 'history'", "list[9]", "tuple[2]", "Tensor"], False),
        (["local 'history'", "list[9]", "ModelOutput", "logits"], False),
        ([], False),
    ],
)
def test_what_lies_between_the_holder_and_its_tensors(chain: list[str], direct: bool) -> None:
    """Behind a tuple or an object ``.detach()`` would be written on the wrong value."""
    assert keeps_tensors_directly(chain) == direct
