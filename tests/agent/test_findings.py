"""What a session has found: one leak, told once."""

import pytest
import torch

from vramscope.leaks.autograd.graph_walk import NodeBudget
from vramscope.leaks.holders import wording
from vramscope.leaks.holders.holder_bytes import group_of
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.registry import FindingRegistry
from vramscope.leaks.verdict.advice import Advice
from vramscope.leaks.verdict.holder_verdict import GROWS, HolderVerdict
from vramscope.steps.clock import StepClock


def report_of(*kinds):
    """Return the kinds reported at the end, after these scans of one list."""
    scans = []
    findings = FindingRegistry(StepClock(), scans.append)
    key = HolderKey(HolderKind.LOCAL, "evaluate", "train.py", "losses")
    holder = wording.nameless_holder(key, "losses", "local 'losses' of evaluate()", [], "train.py", 3, "evaluate")
    weight = torch.ones(64, 64, requires_grad=True)
    group = group_of(holder, [(weight * weight).sum() for _ in range(3)], {}, NodeBudget())
    for kind in kinds:
        findings.add(HolderVerdict(kind, group, 3, 1, 1.0, Advice("put it under torch.no_grad()", 0)))
    findings.send("a test")
    assert all(bool(leak.growth_bytes_per_step) == (leak.kind in GROWS) for leak in scans[-1].leaks)
    return [leak.kind for leak in scans[-1].leaks]


def test_what_is_known_to_grow_is_not_told_again_as_an_overlap_of_itself():
    """The list of an evaluation that lives into the next epoch."""
    assert report_of("growing-eval", "overlap-unfreed") == ["growing-eval"]
    assert report_of("growing", "overlap") == ["growing"]


def test_what_turns_out_to_grow_is_no_overlap_any_more():
    assert report_of("overlap-unfreed", "growing-eval") == ["growing-eval"]
    assert report_of("overlap") == ["overlap"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_sizes_is_one_row_of_what_holds_it():
    """A nested one raises where its shape is asked for; the look goes on."""
    key = HolderKey(HolderKind.LOCAL, "main", "train.py", "bags")
    holder = wording.nameless_holder(key, "bags", "local 'bags' of main()", [], "train.py", 3, "main")
    bags = [torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)]) for _ in range(3)]
    group = group_of(holder, [*bags, torch.zeros(5, 4), torch.tensor(1.0)], {}, NodeBudget())
    assert (group.tensors, group.rows) == (5, 3 + 5 + 1)


def test_the_nodes_of_many_graphs_do_not_depend_on_which_were_walked() -> None:
    """A step's logits and its loss have graphs of two kinds, and only some of all are walked."""
    key = HolderKey(HolderKind.LOCAL, "train", "train.py", "kept")
    holder = wording.nameless_holder(key, "kept", "local 'kept' of train()", [], "train.py", 3, "train")
    weight = torch.ones(4, 4, requires_grad=True)
    logits = [torch.ones(3, 4) @ weight for _ in range(40)]
    losses = [(one * 2).sum() for one in logits]
    of_one = [group_of(holder, [one], {}, NodeBudget()).nodes for one in (logits[0], losses[0])]
    pairs = [one for pair in zip(logits, losses, strict=True) for one in pair]
    for order in (pairs, pairs[1:] + pairs[:1], logits + losses, losses[:7] + logits + losses[7:]):
        assert group_of(holder, order, {}, NodeBudget()).nodes == 40 * sum(of_one)
