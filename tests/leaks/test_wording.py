"""The chain of references of a cycle."""

from __future__ import annotations

import torch

from vramscope.leaks.holders import wording
from vramscope.leaks.holders.user_code import Codes


class History(list[object]):
    """A class of the user whose references are all called the same."""


class Owner:
    def __init__(self) -> None:
        self.tensor = torch.zeros(4)
        self.back = [self]


def test_chain_follows_the_reference_that_leads_back() -> None:
    results: list[object] = [torch.zeros(4)]
    history = History(["a text, which leads nowhere", results])
    results.append(history)
    closure = {id(one): one for one in (history, results, results[0])}
    holder = wording.holder_of_thing(history, results, results[0], ["unused"], Codes(), {}, cyclic=True)
    assert holder is None, "nothing in an empty set leads back"
    holder = wording.holder_of_thing(history, results, results[0], ["unused"], Codes(), closure, cyclic=True)
    assert holder is not None
    assert holder.chain == (holder.words, "list", "Tensor")


def test_chain_has_no_dictionary_of_attributes() -> None:
    """An object has its attributes in a dictionary only once somebody asked for it."""
    inner, outer = Owner(), Owner()
    path = [outer, vars(outer), inner, vars(inner), inner.tensor]
    assert wording.types_below(path) == ["Owner", "Tensor"]
    assert wording.types_below([outer, {"kept": inner}, inner]) == ["dict", "Owner"], "a dictionary of the user stays"
