"""Gradients that are projected to a low rank before the optimizer computes moments: GaLore, APOLLO.

Detected by the optimizer's state: next to the moments it has a projector, an object with a rank and a method ``project``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory.peak_counters import block_bytes
from vramscope.techniques.observation import Detection, TrainingState, setting_text, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "gradient_projection"
REQUESTED: Final = ("galore", "apollo", "q_galore", "q_apollo")
"""Prefixes of the Trainer's setting ``optim``."""
NAMES: Final = {"galore_torch": "GaLore", "apollo_torch": "APOLLO", "q_galore_torch": "Q-GaLore"}


def find(training: TrainingState) -> Detection | None:
    name, value = training.setting("optim")
    declared = setting_text(name, value) if str(value).lower().startswith(REQUESTED) else None
    projected = moments = matrices = plain = 0
    ranks: set[int] = set()
    packages: set[str] = set()
    for optimizer, parameter, state in _states(training):
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
        return Detection(
            technique(
                KIND,
                f"{' + '.join(sorted(names))} rank {rank}",
                declared,
                f"gradients of {projected:,} of {projected + plain:,} parameters are projected to rank {rank}; {moments:,} numbers "
                "per moment",
                rank=max(ranks),
                projected_fraction=projected / (projected + plain),
                moment_numbers=moments,
                projector_bytes=matrices,
            )
        )
    if declared is None:
        return None
    if not plain:
        return Detection(technique(KIND, "low-rank gradients", declared, None))
    finding = training.finding(
        "projection-not-seen",
        f"{declared}, but the optimizer projects no gradient. Its state has its full size.",
        "set optim_target_modules to the names of the modules to project",
    )
    return Detection(technique(KIND, "low-rank gradients", declared, ""), finding if training.is_sure else None)


def _states(training: TrainingState) -> Iterator[tuple[object, torch.Tensor, dict[str, Any]]]:
    for optimizer in training.optimizers:
        for parameter, state in list(optimizer.state.items()):
            if isinstance(state, dict) and _is_tensor(parameter):
                yield optimizer, parameter, state


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _projects(value: object) -> bool:
    return type(getattr(value, "rank", None)) is int and callable(getattr(type(value), "project", None))


def _matrices(projector: object) -> Iterator[torch.Tensor]:
    """Projection matrices: one, or two if both sides are projected."""
    for value in vars(projector).values():
        yield from (one for one in (value if isinstance(value, (list, tuple)) else (value,)) if _is_tensor(one))
