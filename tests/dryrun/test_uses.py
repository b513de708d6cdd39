"""Whether the course of a program depends on a number that it reads."""

from __future__ import annotations

import pytest

from vramscope.dry_run.slice_ends import is_growing_length, is_slice_end
from vramscope.dry_run.uses import decides, is_length


def of(tmp_path, code):
    """Whether the line with ``item`` decides."""
    path = tmp_path / "train.py"
    path.write_text(code)
    line = next(number for number, text in enumerate(code.split("\n"), 1) if "item" in text)
    return decides(str(path), line)


@pytest.mark.parametrize(
    "code",
    [
        "print(loss.item())",
        "total += loss.item()",
        "value = loss.item()\nprint(value)\nlosses.append(value)",
        "def f(loss):\n    return loss.item()",
        "log({'loss': loss.item()})",
        "print(losses[0].item(), losses[i + 1].item())",
        "value = loss.item()\ndef f(value):\n    if value > 3: stop()",
        "if step > 3:\n    print(loss.item())",
        "for k in range(3):\n    losses[k] = loss.item()",
        "value = loss.item()\nif not math.isfinite(value): sys.exit(1)",
        "if not math.isfinite(loss.item()) or math.isnan(loss.item()): sys.exit(1)",
        "clipped += [((ratio - 1).abs() > 0.2).float().mean().item()]",
        "value = loss.item() if isinstance(loss, torch.Tensor) else loss",
        "print(loss.item() if step % len(loader) == 0 and hasattr(loss, 'item') else 0)",
        "self.value = loss.item()\nif self.training: stop()",
        "found = {'loss': loss.item()}\nfor k, v in found.items(): history[k].append(v)",
        "found = [loss.item()]\nfor i, v in enumerate(found): print(names[i], v)",
    ],
)
def test_a_number_that_is_only_shown_decides_nothing(tmp_path, code):
    assert not of(tmp_path, code)


@pytest.mark.parametrize(
    "code",
    [
        "if loss.item() > 3: stop()",
        "while loss.item() > 3: train()",
        "n = int(lengths.item())",
        "x = ids[:, : lengths.item()]",
        "for i in range(count.item()): train()",
        "value = loss.item()\nif value > best: save()",
        "value = loss.item()\nrows = x[:value]",
        "def f(loss):\n    value = loss.item()\n    kept = value < 3\n    return kept",
        "lengths = mask.sum(1).item()\norder = lengths.argsort()\nn = int(lengths[0])",
        "value: float = loss.item()\nassert value < 3",
        "losses[k] = loss.item()\nif losses[0] > 3: stop()",
        "if isinstance(loss, torch.Tensor) and loss.item() > 3: stop()",
        "value = loss.item()\nif math.isfinite(value) and value < 3: stop()",
        "clipped = sum(x.abs().item() > 0.2 for x in ratios)",
        "rate = 1 if loss.item() > 3 else 2",
        "y = h[int(n.item())].cpu()",
        "rows = h[: int(r.item() * len(h))].cpu()",
        "y = torch.zeros(int(x.item())).numpy()",
        "mean = 0.9 * mean + loss.item()\nsmooth = mean / 2\nif smooth > best: stop()",
        "seen.append(loss.item())\nif max(seen) > best: stop()",
        "for value in [loss.item()]:\n    if value > best: stop()",
        "found = {'loss': loss.item()}\nfor k, v in found.items():\n    if v > best: stop()",
        "class A:\n    def f(self):\n        self.v = x.item()\n    def g(self):\n        if self.v: stop()",
    ],
)
def test_a_number_that_is_used_decides(tmp_path, code):
    assert of(tmp_path, code)


def length_in(tmp_path, code):
    path = tmp_path / "train.py"
    path.write_text(code)
    line = next(number for number, text in enumerate(code.split("\n"), 1) if "item" in text)
    return is_length(str(path), line)


@pytest.mark.parametrize(
    "code",
    [
        "x = ids[:, : lengths.item()]",
        "n = int(lengths.item())\nids = ids[:, :n]",
        "n = lengths.item()\nfor i in range(n): train()",
        "for i in range(count.item()): train()",
        "n = lengths.item()\nmask = torch.zeros(4, n, device='cuda')",
        "n = lengths.item()\nmask = torch.full((4, n), 1.0)",
        "x = torch.arange(n.item())",
        "k = n.item()\nx = x.topk(k).values",
        "k = n.item()\nx = torch.topk(x, k=k)",
    ],
)
def test_a_number_that_is_an_end_or_a_size_is_a_length(tmp_path, code):
    assert length_in(tmp_path, code)


@pytest.mark.parametrize(
    "code",
    [
        "x = ids[lengths.item()]",
        "n = lengths.item()\nqueue[:, n : n + 256] = keys",
        "n = lengths.item()\nx = ids[:-n]",
        "value = loss.item()\nif value < best: save(x[:k])",
        "top = correct[:k].float().sum(0).item()",
        "n = max(1, positive.sum().item())\nloss = x[:k].sum() / n",
        "value = loss.item()\nbest = torch.full((3,), value)",
        "self.value = loss.item()\nx = ids[: self.end]",
        "losses.append(loss.item())\nx = torch.zeros(len(losses))",
        "print(loss.item())",
    ],
)
def test_other_numbers_are_no_lengths(tmp_path, code):
    assert not length_in(tmp_path, code)


def test_a_tensor_may_be_an_end_itself(tmp_path):
    (tmp_path / "train.py").write_text("ids = ids[:, :longest]")
    assert is_length(str(tmp_path / "train.py"), 1)
    assert not is_length("<ipython-input-3>", 1)


def test_without_a_source_it_may_decide():
    assert decides("<ipython-input-3>", 1)


@pytest.mark.parametrize(
    ("line", "reading", "expected"),
    [
        ("print(loss.item(), x[:int(n)].shape)", "loss.item()", (False, False)),
        ("print(loss.item(), x[:int(n)].shape)", "int(n)", (True, True)),
        ("y = x[:int(n)]; log(loss.item())", "loss.item()", (False, False)),
        ("for row in range(int(n)): log(loss.item())", "int(n)", (True, True)),
        ("for row in range(int(n)): log(loss.item())", "loss.item()", (False, False)),
        ("log(loss.item(), loss.item() > 3)", "loss.item() ", (True, False)),
        ("print(loss.item(), rows[2 * k.item()])", "k.item()", (True, False)),
        ("n, shown = int(k), loss.item(); x[:n]", "int(k)", (True, True)),
        ("n = k.item(); y = torch.zeros(n)", "k.item()", (False, True)),
        ("y = torch.zeros(4, k)", "torch.zeros(4, k)", (False, True)),
        ("y = torch.full((n, 2), k)", "torch.full((n, 2), k)", (False, False)),
        ("y = x[k, :n]", "x[k, :n]", (False, False)),
        ("assert len(range(k)) > 3", "range(k)", (True, True)),
        ("shown = float(x[:n].mean())", "float(x[:n].mean())", (False, False)),
        ("print(f'{x[:n].mean():.2f}')", "{x[:n].mean():.2f}", (False, False)),
    ],
)
def test_of_several_values_in_a_line_each_has_its_own_use(tmp_path, line, reading, expected):
    path = tmp_path / "train.py"
    path.write_text(line)
    column = line.index(reading)
    place = 1, column, 1, column + len(reading.strip())
    assert (decides(str(path), 1, place), is_length(str(path), 1, place)) == expected


def is_end_in(tmp_path, code, reading="n.item()", rule=is_slice_end):
    path = tmp_path / "train.py"
    path.write_text(code)
    first = code[: code.index(reading)]
    line, column = first.count("\n") + 1, len(first) - (first.rfind("\n") + 1)
    return rule(str(path), (line, column, line, column + len(reading)))


@pytest.mark.parametrize(
    "code",
    [
        "y = x[: n.item()]",
        "y = x[:, : n.item() + 1, :]",
        "y = x[..., : min(64, int(n.item() * len(x)))]",
        "m = n.item()\nx, y = x[:, :m], y[:, : m - 1]",
        "m: int = n.item()\ny = x[:m]",
        "m = int(n.item())\nx = x[:m]\ndef f(m):\n    return x[:m]",
    ],
)
def test_a_number_that_only_cuts_slices_is_an_end(tmp_path, code):
    assert is_end_in(tmp_path, code)


@pytest.mark.parametrize(
    "code",
    [
        "y = x[n.item() :]",
        "y = x[2 : n.item()]",
        "y = x[: -n.item()]",
        "y = x[: len(x) - n.item()]",
        "y = x[: len(x) // n.item()]",
        "y = x[: n.item() % 64]",
        "x[: n.item()] = 0",
        "y = x[k, : n.item() : 2]",
        "y = x[rows[n.item()], :m]",
        "m = n.item()\ny = x[:m]\nfor i in range(m): pass",
        "m = n.item()\ny = x[:m]\ndef f():\n    return torch.zeros(m)",
        "m = -n.item()\ny = x[:m]",
        "y = x[: -1 * n.item()]",
        "m = n.item()\nm %= 64\ny = x[:m]",
        "def f():\n    global m\n    m = n.item()\n    return x[:m]",
        "m = n.item()",
        "print(n.item())",
    ],
)
def test_a_number_with_another_use_is_no_end(tmp_path, code):
    assert not is_end_in(tmp_path, code)


@pytest.mark.parametrize(("slices", "expected"), [("x[:, :n]", True), ("x[k, :n]", False), ("x[:m, :n]", False)])
def test_a_tensor_is_an_end_if_nothing_else_is_read_in_the_brackets(tmp_path, slices, expected):
    assert is_end_in(tmp_path, f"y = {slices}", slices) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("y = torch.zeros(n.item(), 4)", True),
        ("y = torch.zeros((n.item() + 1, 4))", True),
        ("m = n.item()\ny, z = torch.full((m,), 3), x[: m // 2]", True),
        ("for i in range(n.item()): pass", True),
        ("y = torch.zeros(64 - n.item())", False),
        ("y = torch.zeros(64 // n.item())", False),
        ("m = n.item()\ny, z = torch.zeros(m), torch.zeros(64 - m)", False),
        ("m = n.item()\ny = torch.zeros(m)\nif m < 9: z = torch.zeros(99)", False),
    ],
)
def test_a_length_grows_with_a_number_unless_it_is_subtracted_or_decides(tmp_path, code, expected):
    assert is_end_in(tmp_path, code, rule=is_growing_length) is expected
