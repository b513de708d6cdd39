"""Batch size of a micro-step, of a step, and of all ranks together."""

from __future__ import annotations

from typing import Any, Final

from vramscope.techniques.detectors.accumulation import observed_micro_steps
from vramscope.techniques.observation import Detection, TrainingState, plural, setting_text, technique, world_size

KIND: Final = "batch"


def find(training: TrainingState) -> Detection | None:
    name, value = training.setting("per_device_train_batch_size")
    declared = setting_text(name, value) if name else None
    if declared and training.config.get("auto_find_batch_size"):  # the Trainer halves it after each out-of-memory error
        declared += ", auto_find_batch_size=True"
    observation = training.model_calls
    if observation is None or not observation.input_shape:
        return Detection(technique(KIND, f"batch {value}", declared, None, batch_size=value)) if declared else None
    shape = observation.input_shape
    micro_steps, forwards, ranks = observed_micro_steps(training), _forwards(training), data_ranks(training)
    length = shape[1] if observation.has_tokens else None
    observed = f"{plural(shape[0], 'sequence')} of {length}" if length else f"inputs of {' x '.join(map(str, shape))}"
    size, rows, loader_rows = shape[0], None, _loader_rows(training)
    if loader_rows is not None and loader_rows < size:
        size, rows, length, observed = loader_rows, shape[0], None, f"{loader_rows} from the loader, {observed}"
    if micro_steps is not None and micro_steps > 1:
        observed += f", {micro_steps} times per step"
    # Summed losses of several batches, or several views of one batch: the effective batch size is unknown.
    mixed = micro_steps is not None and not observation.takes_turns and forwards > micro_steps
    if mixed:
        observed += f", {plural(forwards, 'forward')} and {plural(observation.backwards, 'backward')}"
    chip = f"batch {size}" + (f" x {length}" if length else "")
    return Detection(
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


def _loader_rows(training: TrainingState) -> int | None:
    """Samples per batch of the loader. The model may get more rows: real and generated ones (a GAN's critic), or two views.

    None if a forward pass may have several batches, or none of the loader's. A critic that steps often has no batch of its
    own in most steps. A loader of single samples may yield whole batches.
    """
    observation = training.model_calls
    if observation is None or observation.loader_batch_size is None or observation.loader_batch_size < 2:
        return None
    batches = observation.batches or 0
    if batches == 0 and len(training.optimizers) < 2:
        return None
    return observation.loader_batch_size if batches <= (observation.micro_steps or 0) else None


def _forwards(training: TrainingState) -> int:
    """Calls of a trained model in the step's micro-steps; 0 if only parts of it were called."""
    observation = training.model_calls
    return 0 if observation is None else max((observation.forwards[id(root)] for root in training.roots), default=0)


def data_ranks(training: TrainingState) -> int | None:
    """Number of processes with batches of their own.

    None if the model may be split over some of them, as by tensor parallelism. Under FSDP each rank has its own batch.
    """
    ranks = world_size()
    sharded = [p for p in training.parameters if hasattr(p, "placements")] if ranks > 1 else []
    if not sharded:
        return ranks
    by_fsdp = any(kind.__name__ == "FSDPModule" for module in training.modules for kind in type(module).__mro__)
    return ranks if by_fsdp and all(_is_fsdp_shard(parameter, ranks) for parameter in sharded) else None


def _is_fsdp_shard(parameter: Any, ranks: int) -> bool:
    """Whether FSDP has sharded the parameter over all ranks, or within groups of ranks with equal shards."""
    mesh, placements = parameter.device_mesh, parameter.placements
    return bool(mesh.size() == ranks and all(type(placed).__name__ == "Replicate" for placed in placements[:-1]))
