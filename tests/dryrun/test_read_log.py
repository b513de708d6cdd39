"""What a program reads from the emulated device, with the line and the purpose."""

from __future__ import annotations

import runpy
import sys

import pytest

from vramscope.dry_run import number_types, result_sizes
from vramscope.dry_run.read_log import ReadLog
from vramscope.protocol.dry_run import Read

pytestmark = pytest.mark.gpu
BEFORE = "import torch\nx = torch.zeros(200, 100, device='cuda')\n"


@pytest.fixture
def reads_of(tmp_path, emulated_gpu, monkeypatch):
    """``reads_of(line)`` runs the line after one that makes a tensor, and returns what it read."""
    import torch

    def run(line: str) -> list[Read]:
        for name in number_types.METHODS:
            monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
        number_types.install()
        path = tmp_path / "train.py"
        path.write_text(BEFORE + line)
        log = ReadLog()
        assert log.watch(lambda: None)
        try:
            runpy.run_path(str(path))
        finally:
            log.stop()
        found = log.reads()
        assert all((read.file, read.line) == (str(path), 3) for read in found)
        return found

    return run


@pytest.fixture
def sizes(emulated_gpu, monkeypatch):
    """Notes the sizes that have a bound."""
    import torch

    of_both = [(owner, name) for owner in (torch, torch.Tensor) for name in ("bincount", "sum", "count_nonzero")]
    of_unique = [(torch, "_unique2"), (torch._VF, "unique_consecutive"), (torch._VF, "unique_dim")]
    for owner, name in [*of_both, *of_unique]:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    result_sizes.install()


@pytest.mark.parametrize(
    ("line", "kind", "operation", "assumed"),
    [
        ("x.sum().item()", "number", "item", "0"),
        ("range(int(x.sum().item()))", "length", "item", "0"),
        ("x.cpu()[0] > 1", "used_copy", "to_dtype_layout", "zeros"),
        ("x.to_sparse().coalesce()", "shape", "to_sparse", "nothing"),
        ("float(x.sum())", "number", "item", "0"),
        ("x.long().sum().item()", "used_number", "item", "0"),
        ("torch.zeros(int(x.long().sum()))", "length", "item", "0"),
        ("x.int().max().item()", "used_number", "item", "0"),  # 4 bytes, as a float has
        ("range(x.int().max())", "length", "item", "0"),
        ("n = x.int().max().item(); torch.zeros(n)", "length", "item", "0"),
        ("k = 9; f'{x[:k].mean():.2f}'", "number", "item", "0"),
        ("x.double().sum().item()", "number", "item", "0"),
        ("assert bool((x > 0).any())", "check", "is_nonzero", "True"),
        ("if (x > 0).any(): raise ValueError", "check", "is_nonzero", "False"),
        ("if torch.isnan(x).any(): raise ValueError", "check", "is_nonzero", "False"),
        ("assert torch.isfinite(x).all()", "check", "is_nonzero", "True"),
        ("if (~torch.isfinite(x)).any(): x = x * 2", "check", "is_nonzero", "False"),
        ("bad = any((~torch.isfinite(y)).any() for y in x[:3])", "check", "is_nonzero", "False"),
        ("good = all(not torch.isnan(y).any() for y in x[:3])", "check", "is_nonzero", "False"),
        ("if all(not torch.isnan(y).any() for y in x[:3]): x = x * 2", "check", "is_nonzero", "False"),
        ("x.cpu()", "copy", "to_dtype_layout", "zeros"),
        ("x.tolist()", "copy", "to_dtype_layout", "zeros"),
        ("x[0].cpu()", "used_copy", "to_dtype_layout", "zeros"),
        ("x[0].long().tolist()", "used_copy", "to_dtype_layout", "zeros"),
        ("x[0].tolist()", "copy", "to_dtype_layout", "zeros"),
        ("import io; torch.save(x[0].long(), io.BytesIO())", "copy", "copy_", "zeros"),
        ("x.unique()", "shape", "_unique2", "nothing"),
        ("x.nonzero()", "shape", "nonzero", "nothing"),
        ("x[x > 0]", "shape", "index_Tensor", "nothing"),
        ("x.masked_select(x > 0)", "shape", "masked_select", "nothing"),
        ("x.long().flatten().bincount()", "shape", "bincount", "nothing"),
        ("torch.nn.functional.one_hot(x.long())", "shape", "one_hot", "nothing"),
        (
            "torch.repeat_interleave(torch.ones(3, dtype=torch.long, device='cuda'))",
            "shape",
            "repeat_interleave_Tensor",
            "nothing",
        ),
    ],
)
def test_a_read_has_a_purpose(reads_of, line, kind, operation, assumed):
    first, *others = reads_of(line)
    assert (first.kind, first.operation, first.assumed) == (kind, operation, assumed)
    assert {other.kind for other in others} <= {kind}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not say which expression reads")
@pytest.mark.parametrize(
    "line",
    [
        "assert len(x[: int(x.sum().item())]) == 200",
        "assert len(x[: x.long().sum()]) == 200",
        "assert x[:, : int(x.int().max()) + 1].shape == (200, 100)",
        "n = x.double().sum().item(); assert len(x[: int(n)]) == 200",
        "k = x.long().sum(); assert len(x[:k]) == 200",
        "n = x.argmax().item(); assert len(x[: min(n, 150)]) == 150",
    ],
)
def test_an_end_of_a_slice_is_that_of_the_dimension(reads_of, line):
    (read,) = reads_of(line)
    assert (read.kind, read.operation, read.assumed) == ("largest", "item", "every element")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not say which expression reads")
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("assert len(torch.zeros(int((x > 0).sum()))) == 20_000", "largest"),
        ("assert len(torch.zeros(int((x > 0).sum(dtype=torch.float)))) == 20_000", "largest"),
        ("n = (x > 0).sum(); assert len(torch.zeros(int(n))) == 20_000", "largest"),
        ("n = (x > 0).sum(); n.add_(1).sub_(1); assert len(x[: int(n)]) == 200", "largest"),
        ("n = int((x > 0).sum()); k = max(n, 7); assert len(x.flatten().topk(k)[0]) == 20_000", "largest"),
        ("k = int((x > 0).sum()); assert len(torch.topk(x.flatten(), k)[0]) == 20_000", "largest"),
        ("torch.zeros(20_000 - int((x > 0).sum()))", "length"),
        ("n = (x > 0).sum(); n *= 9; torch.zeros(int(n))", "length"),
    ],
)
def test_a_length_that_counts_a_mask_is_bounded_if_nothing_changes_it(reads_of, sizes, line, kind):
    (read,) = reads_of(line)
    assert read.kind == kind


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not say which expression reads")
@pytest.mark.parametrize(
    "line",
    [
        "n = (x > 0).sum().item(); assert 9 / n == 9 / 20_000",
        "assert (x > 0).sum().item() >= 20_000",
        "n = int((x > 0).sum(dtype=torch.float)); assert n == 20_000",
    ],
)
def test_a_number_of_true_elements_is_all_of_them(reads_of, sizes, line):
    (read,) = reads_of(line)
    assert (read.kind, read.assumed) == ("used_number", "20000, as if that many elements of a mask were true")


@pytest.mark.parametrize(
    "line", ["x.unique(dim=7)", "torch.unique([1, 2])", "x.long().flatten().bincount(minlength=None)"]
)
def test_arguments_that_pytorch_refuses_are_refused_with_its_words_alone(reads_of, sizes, capfd, line):
    with pytest.raises((IndexError, TypeError)) as raised:
        reads_of(line)
    assert "not supported between" not in str(raised.value)
    assert "vramscope" not in capfd.readouterr().err


SEEN = """
seen = []
class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        seen.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})
own = (x > 0).as_subclass(Own); seen.clear(); own.sum(); own.count_nonzero(); assert seen == ["sum", "count_nonzero"], seen
"""


def test_a_class_of_the_program_sees_its_own_calls_alone(reads_of, sizes):
    assert reads_of(SEEN) == []


def test_a_traced_graph_has_no_node_of_the_dry_run(reads_of, sizes):
    line = "import torch.fx; nodes = torch.fx.symbolic_trace(lambda a: torch.sum(a > 0)).graph.nodes; assert len(nodes) == 4, nodes"
    assert reads_of(line) == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not say which expression reads")
@pytest.mark.parametrize(
    ("line", "kind", "assumed"),
    [
        ("bad = lambda y: bool((y > 0).any())\nif bad(x): raise ValueError", "check", "False"),
        ("bad = lambda y: (y > 0).any().item()\nwhile not bad(x): x += 1", "branch", "False"),
        ("bad = lambda y: (y > 0).any().item()\nprint(bad(x))", "branch", "True"),
        (
            "bad = lambda y: (y > 0).any().item()\nagain = lambda y: bad(y)\nif again(x): raise ValueError",
            "check",
            "False",
        ),
        ("many = lambda y: (y > 0).any().item()\nif not len((x, many(x))): raise ValueError", "branch", "True"),
    ],
)
def test_a_returned_truth_value_is_that_of_the_caller_s_condition(reads_of, line, kind, assumed):
    first, *_ = reads_of(line)
    assert (first.kind, first.assumed) == (kind, assumed)


def test_the_checks_of_distributions_are_those_of_a_healthy_training(reads_of):
    """PyTorch 2.15 makes them in a function of its own."""
    assert {read.kind for read in reads_of("torch.distributions.Normal(x, x.exp(), validate_args=True)")} == {"check"}


@pytest.mark.parametrize("line", ["str(x)", "repr(x[0])", "f'{x}'"])
def test_a_printed_tensor_decides_nothing(reads_of, line):
    assert {read.kind for read in reads_of(line)} == {"print"}


@pytest.mark.parametrize(
    "line",
    [
        "x @ x.t()",
        "torch.nn.functional.softmax(x, -1).argmax(-1)",
        "x.sort()",
        "x.topk(3)",
        "torch.tensor([1, 2], device='cuda').tolist()",  # the host wrote it
        "torch.utils.checkpoint.checkpoint(torch.nn.Linear(100, 3).cuda(), x, use_reentrant=False)",
        "torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(x)], 1.0)",
    ],
)
def test_what_stays_on_the_device_is_no_read(reads_of, line):
    assert reads_of(line) == []


def test_reads_of_one_line_are_counted(reads_of):
    (read,) = reads_of("for _ in range(5): x.sum().item()")
    assert read.count == 5


def test_a_loop_that_waits_for_a_value_receives_the_opposite(reads_of):
    (read,) = reads_of("while bool((x > 0).any()): x += 1")
    assert (read.assumed, read.count) == ("True", 1000)


def test_the_line_of_a_package_stands_beside_the_user_s(tmp_path, monkeypatch, emulated_gpu):
    package = tmp_path / "site-packages" / "trainer_of_others"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def mean(x):\n    return x.mean().item()\n")
    monkeypatch.syspath_prepend(package.parent)
    path = tmp_path / "train.py"
    path.write_text(BEFORE + "import trainer_of_others\ntrainer_of_others.mean(x)")
    log = ReadLog()
    log.watch(lambda: None)
    try:
        runpy.run_path(str(path))
    finally:
        log.stop()
    (read,) = log.reads()
    assert (read.line, read.via) == (4, "trainer_of_others/__init__.py:2")


def test_a_mask_selects_one_element_if_the_fewest_are_asked_for():
    log = ReadLog(selects_fewest=True)
    assert [log.selected(None, elements) for elements in (100, 0)] == [1, 0]
    assert [(read.kind, read.assumed, read.count) for read in log.reads()] == [("largest", "one element", 2)]
    assert ReadLog().selected(None, 100) == 100
