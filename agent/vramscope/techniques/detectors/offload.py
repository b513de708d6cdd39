"""Offload: saved tensors, optimizer state or parameters in host memory instead of on the GPU."""

from __future__ import annotations

from typing import Any, Final

from vramscope.techniques.observation import Detection, TrainingState, plural, setting_text, technique

KIND: Final = "offload"


def find(training: TrainingState) -> Detection | None:
    declared = _declared(training)
    on_host = all(parameter.device.type == "cpu" for parameter in training.parameters)
    parts: list[str] = []
    kind = "CPU"
    observation = training.module_calls
    # Offloaded parameters are on the GPU only during their use.
    fetched = on_host and observation is not None and observation.weights_on_gpu
    share = _state_on_host(training, trains_on_host=not fetched)
    if share:
        kind = "optimizer"
        parts.append(f"{share:.0%} of the optimizer state".replace("%", " %"))
    modules = offloaded_modules(training)
    if modules or fetched or any(map(_has_zero_shard_on_host, training.parameters)):
        kind = "parameter"
        parts.insert(0, f"parameters of {plural(modules, 'module')}" if modules else "unused parameters")
    if observation is not None and observation.saved_to_host:
        kind = "activation"
        parts.insert(0, f"saved tensors, by {observation.saved_to_host}")
    if not parts and declared is None:
        return None
    observed = (
        "on the host: " + ", ".join(parts) if parts else "" if observation is not None and training.optimizers else None
    )
    finding = None
    if observed == "" and training.is_sure:
        text = f"{declared}, but nothing was on the host in {training.observed} observed steps."
        finding = training.finding("offload-not-seen", text, "check that the option applies to the intended part")
    return Detection(technique(KIND, f"{kind} offload", declared, observed), finding)


def _declared(training: TrainingState) -> str | None:
    settings: list[str] = []
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        options = training.config.get(name)
        if isinstance(options, dict) and options.get("offload") and not settings:  # a Trainer sets both names
            settings.append(f"{name}={{'offload': {options['offload']}}}")
    for name in ("activation_checkpointing_offload", "cpu_offload"):
        if training.config.get(name):
            settings.append(setting_text(name, training.config[name]))
    for root in training.roots:
        device_map = vars(root).get("hf_device_map")
        if isinstance(device_map, dict) and (away := [n for n, at in device_map.items() if str(at) in ("cpu", "disk")]):
            settings.append(f"device_map: {', '.join(name or 'all' for name in away)[:200]} on the host")
            break
    return ", ".join(settings) or None


def _state_on_host(training: TrainingState, *, trains_on_host: bool) -> float:
    """Share of the optimizer state's bytes in host memory. Copies of parameters count too.

    trains_on_host   parameters on the host are trained there: their state is not offloaded
    """
    of_host = {id(parameter) for parameter in training.parameters if trains_on_host and parameter.device.type == "cpu"}
    host = total = 0
    for parameter, state in training.optimizer_states:
        if id(parameter) in of_host:
            continue
        for value in state:
            if value.numel() > 1:  # PyTorch keeps step counts as scalars on the host
                size = value.numel() * value.element_size()
                total += size
                host += size if value.device.type == "cpu" or _is_paged(value) else 0
    return host / total if total else 0.0


def _is_paged(value: Any) -> bool:
    """Whether bitsandbytes has put the tensor into managed memory, which the driver moves to the host if the GPU is full."""
    return bool(getattr(value, "is_paged", False))


def _has_zero_shard_on_host(parameter: Any) -> bool:
    """Whether ZeRO stage 3 keeps this rank's shard on the host. The parameter itself is empty while unused; small ones persist."""
    shard = getattr(parameter, "ds_tensor", None)
    return shard is not None and shard.device.type == "cpu" and not getattr(parameter, "ds_persist", False)


def offloaded_modules(training: TrainingState) -> int:
    """Number of modules whose weights Accelerate moves to the device and back."""
    return sum(_is_offloaded(module) for module in training.modules)


def _is_offloaded(module: Any) -> bool:
    """Whether Accelerate has hooked the module to move its weights to the device during its forward pass."""
    hook = vars(module).get("_hf_hook")
    return bool(getattr(hook, "offload", False)) and type(hook).__name__ == "AlignDevicesHook"
