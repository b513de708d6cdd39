"""How large a batch is: of a micro-step, of a step, and of all ranks together."""

from __future__ import annotations

from typing import Any, Final

from vramscope.techniques.detectors.accumulation import seen_micro_steps
from vramscope.techniques.observation import Facts, Found, all_ranks, said, some, technique

KIND: Final = "batch"


def find(facts: Facts) -> Found | None:
    name, value = facts.setting("per_device_train_batch_size")
    declared = said(name, value) if name else None
    if declared and facts.config.get("auto_find_batch_size"):  # halved after each out-of-memory error
        declared += ", auto_find_batch_size=True"
    heard = facts.counted
    if heard is None or not heard.input_shape:
        return Found(technique(KIND, f"batch {value}", declared, None, batch_size=value)) if declared else None
    shape = heard.input_shape
    micro_steps, forwards, ranks = seen_micro_steps(facts), _forwards(facts), data_ranks(facts)
    length = shape[1] if heard.tokens else None
    observed = f"{some(shape[0], 'sequence')} of {length}" if length else f"inputs of {' x '.join(map(str, shape))}"
    size, rows, loaded = shape[0], None, _of_the_loader(facts)
    if loaded is not None and loaded < size:
        size, rows, length, observed = loaded, shape[0], None, f"{loaded} of the loader, as {observed}"
    if micro_steps is not None and micro_steps > 1:
        observed += f", {micro_steps} times a step"
    # Losses of several batches that are summed up, or several views of one: what the step learns from is not known.
    mixed = micro_steps is not None and not heard.turns and forwards > micro_steps
    if mixed:
        observed += f", {some(forwards, 'forward')} to {some(heard.backwards, 'backward')}"
    chip = f"batch {size}" + (f" x {length}" if length else "")
    return Found(
        technique(
            KIND,
            chip,
            declared,
            observed,
            batch_size=size,
            input_rows=rows,
            sequence_length=length,
            effective_batch_size=None if micro_steps is None or ranks is None or mixed else size * micro_steps * ranks,
        )
    )


def _of_the_loader(facts: Facts) -> int | None:
    """Samples in a batch of the loader, of which the model may be given more rows at once: real and made ones (a GAN's critic), two
    views of each. None where a forward may have several batches, or none of the loader's.

    A critic that steps often has no batch of its own in most of the steps. A loader of one gives what was made a batch before.
    """
    heard = facts.counted
    if heard is None or heard.loaded is None or heard.loaded < 2:
        return None
    batches = heard.batches or 0
    if batches == 0 and len(facts.optimizers) < 2:
        return None
    return heard.loaded if batches <= (heard.micro_steps or 0) else None


def _forwards(facts: Facts) -> int:
    """How often a model that is trained was called in the step's micro-steps; 0 where only parts of it were."""
    return 0 if facts.counted is None else max((facts.counted.forwards[id(root)] for root in facts.roots), default=0)


def data_ranks(facts: Facts) -> int | None:
    """Processes that each take batches of their own; None where the model itself may be split over some of them, as by tensor
    parallelism: only FSDP's division is known to leave each rank its batch."""
    ranks = all_ranks()
    divided = [p for p in facts.parameters if hasattr(p, "placements")] if ranks > 1 else []
    if not divided:
        return ranks
    by_fsdp = any(kind.__name__ == "FSDPModule" for module in facts.modules for kind in type(module).__mro__)
    return ranks if by_fsdp and all(_is_for_data(parameter, ranks) for parameter in divided) else None


def _is_for_data(parameter: Any, ranks: int) -> bool:
    """FSDP has divided it over all ranks, or among groups of them that hold the same."""
    mesh, placements = parameter.device_mesh, parameter.placements
    return bool(mesh.size() == ranks and all(type(placed).__name__ == "Replicate" for placed in placements[:-1]))
