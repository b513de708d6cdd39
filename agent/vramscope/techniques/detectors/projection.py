"""Gradients that are projected to a low rank before the optimizer keeps moments of them: GaLore, APOLLO.

Known by what stands in the optimizer's state: beside the moments a projector, an object with a rank that projects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory.peak_counters import block_bytes
from vramscope.techniques.observation import Facts, Found, said, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "gradient_projection"
ASKED: Final = ("galore", "apollo", "q_galore", "q_apollo")
"""how a Trainer's ``optim`` begins that means one"""
NAMES: Final = {"galore_torch": "GaLore", "apollo_torch": "APOLLO", "q_galore_torch": "Q-GaLore"}


def find(facts: Facts) -> Found | None:
    name, value = facts.setting("optim")
    declared = said(name, value) if str(value).lower().startswith(ASKED) else None
    projected = moments = matrices = plain = 0
    ranks: set[int] = set()
    packages: set[str] = set()
    for optimizer, parameter, state in _states(facts):
        tensors = [one for one in state.values() if _is_tensor(one)]
        projector = next((one for one in state.values() if _projects(one)), None)
        if projector is None:
            plain += parameter.numel() if tensors else 0
            continue
        projected += parameter.numel()
        moments += max((one.numel() for one in tensors), default=0)
        matrices += sum(block_bytes(one.numel() * one.element_size()) for one in _matrices(projector))
        ranks.add(projector.rank)
        packages.add(type(optimizer).__module__.partition(".")[0])
    if projected:
        rank = " and ".join(map(str, sorted(ranks)))
        names = {NAMES.get(package, "low rank") for package in packages}
        return Found(
            technique(
                KIND,
                f"{' + '.join(sorted(names))} rank {rank}",
                declared,
                f"gradients of {projected:,} of {projected + plain:,} parameters are projected to rank {rank}: each moment of them "
                f"keeps {moments:,} numbers",
                rank=max(ranks),
                projected_fraction=projected / (projected + plain),
                moment_numbers=moments,
                projector_bytes=matrices,
            )
        )
    if declared is None:
        return None
    if not plain:
        return Found(technique(KIND, "low-rank gradients", declared, None))
    finding = facts.finding(
        "projection-not-seen",
        f"{declared}, and the optimizer projects no gradient: its state takes the whole size.",
        "optim_target_modules has to name the modules whose weights are meant",
    )
    return Found(technique(KIND, "low-rank gradients", declared, ""), finding if facts.is_sure else None)


def _states(facts: Facts) -> Iterator[tuple[object, torch.Tensor, dict[str, Any]]]:
    for optimizer in facts.optimizers:
        for parameter, state in list(optimizer.state.items()):
            if isinstance(state, dict) and _is_tensor(parameter):
                yield optimizer, parameter, state


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _projects(value: object) -> bool:
    return type(getattr(value, "rank", None)) is int and callable(getattr(type(value), "project", None))


def _matrices(projector: object) -> Iterator[torch.Tensor]:
    """A matrix, or two where both sides are projected."""
    for value in vars(projector).values():
        yield from (one for one in (value if isinstance(value, (list, tuple)) else (value,)) if _is_tensor(one))
