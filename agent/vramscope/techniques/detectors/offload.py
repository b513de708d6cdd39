"""Offload: what would lie on the GPU lies in the host's memory: saved tensors, optimizer state, parameters."""

from __future__ import annotations

from typing import Any, Final

from vramscope.techniques.observation import Facts, Found, said, some, technique

KIND: Final = "offload"


def find(facts: Facts) -> Found | None:
    declared = _declared(facts)
    on_host = all(parameter.device.type == "cpu" for parameter in facts.parameters)
    seen: list[str] = []
    what = "CPU"
    heard = facts.heard
    brought = on_host and heard is not None and heard.weights_on_gpu
    share = _state_on_host(facts, at_home=not brought)
    if share:
        what = "optimizer"
        seen.append(f"{share:.0%} of the optimizer's state".replace("%", " %"))
    modules = offloaded_modules(facts)
    if modules or brought or any(map(_has_its_part_on_host, facts.parameters)):
        what = "parameter"
        seen.insert(0, f"parameters of {some(modules, 'module')}" if modules else "parameters, while they are not used")
    if heard is not None and heard.saved_to_host:
        what = "activation"
        seen.insert(0, f"saved tensors, by {heard.saved_to_host}")
    if not seen and declared is None:
        return None
    observed = "on the host: " + ", ".join(seen) if seen else "" if heard is not None and facts.optimizers else None
    finding = None
    if observed == "" and facts.is_sure:
        text = f"{declared}, and nothing was seen on the host in {facts.observed} observed steps."
        finding = facts.finding("offload-not-seen", text, "look whether the option reaches the part that was meant")
    return Found(technique(KIND, f"{what} offload", declared, observed), finding)


def _declared(facts: Facts) -> str | None:
    told: list[str] = []
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        given = facts.config.get(name)
        if isinstance(given, dict) and given.get("offload") and not told:  # (a Trainer has both names for one thing)
            told.append(f"{name}={{'offload': {given['offload']}}}")
    for name in ("activation_checkpointing_offload", "cpu_offload"):
        if facts.config.get(name):
            told.append(said(name, facts.config[name]))
    for root in facts.roots:
        places = vars(root).get("hf_device_map")
        if isinstance(places, dict) and (away := [name for name, at in places.items() if str(at) in ("cpu", "disk")]):
            told.append(f"device_map: {', '.join(name or 'all' for name in away)[:200]} on the host")
            break
    return ", ".join(told) or None


def _state_on_host(facts: Facts, *, at_home: bool) -> float:
    """Share of the state's bytes that lie on the host. Some keep a copy of the parameter there too.

    at_home   a parameter that lies there itself is trained there: its state is where it belongs
    """
    of_host = {id(parameter) for parameter in facts.parameters if at_home and parameter.device.type == "cpu"}
    host = total = 0
    for parameter, state in facts.states:
        if id(parameter) in of_host:
            continue
        for value in state:
            if value.numel() > 1:  # a step's count is a scalar on the host, by PyTorch's own choice
                size = value.numel() * value.element_size()
                total += size
                host += size if value.device.type == "cpu" or _is_paged(value) else 0
    return host / total if total else 0.0


def _is_paged(value: Any) -> bool:
    """bitsandbytes marks tensors in managed memory, which the driver moves to the host when the card is full."""
    return bool(getattr(value, "is_paged", False))


def _has_its_part_on_host(parameter: Any) -> bool:
    """ZeRO's third stage keeps a rank's part beside the parameter, which is empty but for its use: small ones are always there."""
    part = getattr(parameter, "ds_tensor", None)
    return part is not None and part.device.type == "cpu" and not getattr(parameter, "ds_persist", False)


def offloaded_modules(facts: Facts) -> int:
    """Whose weights Accelerate brings to the device, and takes away again."""
    return sum(_is_offloaded(module) for module in facts.modules)


def _is_offloaded(module: Any) -> bool:
    """Accelerate's hook that brings a module's weights to the device for the time of its forward."""
    hook = vars(module).get("_hf_hook")
    return bool(getattr(hook, "offload", False)) and type(hook).__name__ == "AlignDevicesHook"
