"""One-line fix of a finding, and how many bytes it frees."""

from __future__ import annotations

from typing import NamedTuple

from vramscope.leaks.autograd.graph_walk import NODE_BYTES
from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.holders.key import HolderKind, Mechanism
from vramscope.leaks.policy import POLICY
from vramscope.process.gc_pause import collector_runs
from vramscope.protocol.number_format import amount

CLEARABLE = ("dict", "list", "set", "deque", "defaultdict", "OrderedDict")
"""Python's own containers, which code fills again. A library's result is a mapping too, but each step makes a new one."""
NO_GRAD = "no backward follows: run the evaluation under torch.no_grad() or torch.inference_mode()"


class Advice(NamedTuple):
    """A fix in words."""

    text: str
    freed_bytes: int
    """Bytes that following it frees."""
    fix: str = ""
    """A word of series.FIXES where the source line alone tells what to write; "" elsewhere."""


def unwalked(module: str) -> str:
    """Advice on a graph that a training step builds and no backward walks."""
    return (
        f"no backward walks what {module} builds here: call it under torch.no_grad(), or call requires_grad_(False) on it once if "
        "it is never trained"
    )


def advice_for(
    kind: str,
    group: HeldMemory,
    retain_graph_at: tuple[str, int, str] | None,
    *,
    chain: bool = False,
    per: str = "step",
) -> Advice:
    """The fix of a finding.

    retain_graph_at   file, line and function of a backward(retain_graph=True), if any
    chain             each step's value is computed from the one before: as many tensors, a longer graph
    per               unit of an iteration, one of series.ROUNDS
    """
    if kind in ("growing", "growing-eval"):
        return _growing(kind, group, chain)
    if kind == "no_grad-missing":
        return Advice(NO_GRAD, group.saved_bytes)
    if kind in ("overlap", "overlap-unfreed") and group.holder.through_traceback:
        return Advice(_of_exceptions(group.holder), group.held_bytes)
    if kind == "overlap-unfreed":
        return Advice(*_unfreed(group, retain_graph_at))
    if kind == "overlap":
        return Advice(_overlap(group), group.held_bytes)
    if kind == "cycle":
        return Advice(_cycle(group), group.held_bytes)
    return Advice(_plain(group, per), group.held_bytes)


def _overlap(group: HeldMemory) -> str:
    holder, name = group.holder, group.holder.name
    # A hook that fills a container may need its name.
    free = f"{name}.clear()" if _is_clearable(holder) else f"del {name}"
    if holder.key.kind is HolderKind.UNKNOWN:
        text = "delete it as soon as the loss is computed"
    elif group.scalars:  # backward begins with it
        text = f"`{free}` right after backward (take its .item() first if you need the number)"
    elif holder.read_late:
        text = f"`{free}` when it has been used for the last time, before the next step begins"
    else:
        text = f"`{free}` as soon as the loss is computed (before backward, if nothing needs it later)"
    if holder.kv_cache:
        text += "; `use_cache=False` saves the cache of a language model in training"
    return text


def _name_of(holder: Holder) -> str:
    return "its holder" if holder.key.kind is HolderKind.UNKNOWN else holder.name


def _plain(group: HeldMemory, per: str) -> str:
    """Advice on tensors without graphs that grow with each iteration."""
    holder, name = group.holder, _name_of(group.holder)
    if metric := holder.metric:
        variable = name.rpartition(".")[0] or name
        return (
            f"{metric} keeps every batch until it is reset: call {variable}.reset() at the end of each epoch, or "
            f"{metric}(..., compute_on_cpu=True), which keeps them on the host"
        )
    if mechanism := _of_mechanism(holder):
        return mechanism
    if group.models:
        where = "" if group.on_cpu else " on the host"
        return (
            f"{name} keeps {group.models} whole models: keep what you need of each (a number, a copy of its "
            f"state_dict(){where}), and delete the model, its gradients and its optimizer"
        )
    if group.tensors == 1 and not holder.container:
        where = "" if group.on_cpu else " on the host (.cpu())"
        return (
            f"{name} is extended again and again, and each time the old tensor stays until the longer one exists: keep the "
            f"parts in a list{where} and join them once{', or start again each epoch' if per == 'step' else ''}"
        )
    if not group.scalars and group.own_bytes > POLICY.large_view * max(1, group.seen_bytes):
        return (
            f".clone() each tensor before it goes into {name}: it is a view of a larger tensor, which it keeps whole "
            f"({amount(group.own_bytes)} for {amount(group.seen_bytes)})"
        )
    less = "keep the number (.item())" if group.scalars else "keep less of it (a sum, a mean, the last one)"
    off = "" if group.on_cpu else "move it off the device (.cpu()), "
    if per != "step":
        each = "each batch" if per == "batch" else "each call of the model"
        return f"{name} grows with {each}: {off}{less}, or write it out and delete it"
    bound = (
        "or empty it more often" if holder.emptied_at else "bound it (deque(maxlen=...)), or clear it every few steps"
    )
    return f"{name} grows with each step: {less}, {off}{bound}"


def _of_mechanism(holder: Holder) -> str:
    """Advice where Python's, PyTorch's or a library's machinery retains the tensors; empty elsewhere."""
    if holder.linked:
        kind, _, attribute = holder.linked.partition(".")
        return (
            f"each {kind} leads to an earlier one by .{attribute}, so none is freed: set .{attribute} = None where the "
            f"earlier ones are no longer needed, or keep less in each ({holder.name})"
        )
    name = holder.subject
    match holder.mechanism:
        case Mechanism.ITERATOR:
            return (
                "itertools.cycle keeps every batch to return it again: iterate over the source instead "
                "(`while True: yield from ...`)"
            )
        case Mechanism.TEE:
            return (
                "itertools.tee keeps what one of its iterators has read until the other has, too: delete the one that is behind, "
                "or read them in turn"
            )
        case Mechanism.CALLS:
            return (
                f"more and more calls of {holder.function}() have not returned (threads or recursion), and each has {name}: let "
                "them return, or give them less (a number, a copy on the host)"
            )
        case Mechanism.PARAMETER_GROUPS:
            return (
                f"parameters that only {name} has: no model computes with them any more. Remove their groups, or make a new "
                "optimizer; that frees their gradients and their state as well"
            )
        case Mechanism.EVALUATION_OUTPUTS:
            return (
                "Trainer keeps the predictions of a whole evaluation on the device: eval_accumulation_steps in TrainingArguments "
                "moves them to the host every few batches, preprocess_logits_for_metrics keeps less of each (argmax, say)"
            )
        case Mechanism.WEAK_KEYS:
            return f"{name} frees an entry with its key, and the keys are kept elsewhere: keep less there (a number, an index)"
        case Mechanism.CACHED_FUNCTION:
            bound = (
                "bound it (lru_cache(maxsize=...))"
                if holder.bound is None
                else f"lower its maxsize of {holder.bound:,}"
            )
            return (
                f"{name} is cached and gets new arguments again and again: {bound}, call "
                f"{name}.cache_clear() at the end of each epoch, or do not cache what depends on the step"
            )
        case Mechanism.HOOKS:
            return f"hooks are added to {name} and none is removed: store what register_*_hook returns, and .remove() it when done"
        case Mechanism.UNTRAINED_ENTRIES:
            return (
                f"{name} keeps gradients of entries that were trained earlier and that no optimizer trains now: set .grad = None "
                "when one has been trained, and delete entries that are not used again"
            )
        case Mechanism.IDLE_OPTIMIZER:
            return f"another optimizer trains the weights now: delete {name} (`del`, or set it to None) if it is not used again"
        case Mechanism.CLOSURE:
            return (
                f"each step makes another function {name} with its variables, and something keeps them: store what register_hook "
                "returns and .remove() it, or make the function once"
            )
    return ""


def _growing(kind: str, group: HeldMemory, chain: bool) -> Advice:
    """Advice on graphs that grow in number or length."""
    name = _name_of(group.holder)
    if mechanism := _of_mechanism(group.holder):
        return Advice(mechanism, group.held_bytes)
    if group.holder.through_traceback:
        return Advice(_of_exceptions(group.holder), group.held_bytes)
    if chain and not group.scalars:
        return Advice(_growing_chain(kind, group, name), group.saved_bytes)
    if group.scalars and not chain and group.own_bytes > POLICY.large_scalar_bytes * group.tensors:
        return Advice(
            f"keep the number: .item() before it goes into {name}; .detach() would keep the storage of each scalar, "
            f"{amount(group.own_bytes // group.tensors)}",
            group.held_bytes,
            "item",
        )
    if group.scalars:
        what = ".item()" if kind == "growing" else ".item(), under torch.no_grad()"
        text = f"keep the number, not its graph: {what} (or .detach()) before it goes into {name}"
        return Advice(text, group.held_bytes, "item")
    under = "compute it under torch.no_grad() and " if kind == "growing-eval" else ""
    own, saved = group.own_bytes, group.saved_bytes
    if own > saved:
        where = "reduce it" if group.on_cpu else "move it to the host (.detach().cpu()) or reduce it"
        return Advice(
            f"{under}{where} before it goes into {name}: the tensors are {_share(own, own + saved)} of the retained memory, "
            f".detach() alone frees {_graph_bytes(saved, group)}",
            group.held_bytes,
            "" if group.on_cpu else "host",
        )
    entries = "them" if group.holder.key.kind is HolderKind.UNKNOWN else f"{name}'s entries"
    return Advice(
        f"{under}store {entries} with .detach(): that frees the graphs, {_graph_bytes(saved, group)}; the tensors are "
        f"{amount(own)}",
        saved,
        "detach",
    )


def _growing_chain(kind: str, group: HeldMemory, name: str) -> str:
    if kind == "growing-eval":
        return "no backward follows: compute it under torch.no_grad(), so that no graph is carried over"
    each = "each of its tensors" if group.graphs > 1 or not group.holder.named else f"`{name} = {name}.detach()`"
    if group.holder.written:
        each = f"what is written into {name}, as in `{name}[...] = value.detach()`"
    return f"detach what is carried over from step to step: {each}, or compute it under torch.no_grad()"


def _of_exceptions(holder: Holder) -> str:
    what = "exceptions, whose tracebacks keep" if holder.container else "an exception, whose traceback keeps"
    return (
        f"{holder.name} keeps {what} all variables of the functions on the stack: keep the text (str(error)), or "
        "error.with_traceback(None)"
    )


def _graph_bytes(saved: int, group: HeldMemory) -> str:
    nodes = f"about {amount(group.nodes * NODE_BYTES)} of host memory in autograd nodes"
    return f"{amount(saved)} and {nodes}" if saved else nodes


def _unfreed(group: HeldMemory, retain_graph_at: tuple[str, int, str] | None) -> tuple[str, int]:
    """Advice on activations that no backward freed."""
    name = group.holder.name
    if group.attributes:
        file, line, attribute, size = max(group.attributes, key=lambda entry: entry[3])
        where = f" ({_short(file)}:{line})" if line else ""
        names = sorted({entry[2] for entry in group.attributes}, key=lambda name: name != attribute)
        others = f" and {names[1] if len(names) == 2 else f'{len(names) - 1} more'}" if names[1:] else ""
        text = (
            f"backward does not free attributes of ctx: use ctx.save_for_backward in place of {attribute}{where}{others}, "
            f"{'up to ' if others else ''}{amount(size)} each; or `del {name}` at the end of the step"
        )
    elif retain_graph_at is not None:
        text = (
            f"drop retain_graph=True ({_short(retain_graph_at[0])}:{retain_graph_at[1]}) if no second backward needs it, "
            f"or `del {name}` at the end of the step"
        )
    else:
        text = (
            f"no backward walks {name}'s part of the graph, so nothing frees it: compute it under torch.no_grad(), "
            f"detach() its input, or `del {name}` at the end of the step"
        )
    return text, group.held_bytes


def _cycle(group: HeldMemory) -> str:
    if group.holder.key.kind is HolderKind.CREATE_GRAPH:
        return (
            "no garbage collector frees these: set .grad = None when the gradients are used, or compute them by "
            "torch.autograd.grad(..., create_graph=True) in place of backward(create_graph=True)"
        )
    # Some programs switch the collector off and collect every few steps.
    off = "" if collector_runs() else "; the garbage collector is switched off: nothing but gc.collect() frees it"
    return _break_of_cycle(group.holder) + off


def _break_of_cycle(holder: Holder) -> str:
    """Advice that breaks a cycle of Python objects."""
    match holder.key.kind:
        case HolderKind.FRAME:
            return (
                f"an exception and the frame that keeps it refer to each other: `del {holder.name}` when it is handled, "
                "or keep its text only"
            )
        case HolderKind.AUTOGRAD_CONTEXT:
            return (
                f"ctx keeps {holder.name}, whose graph keeps ctx: use ctx.save_for_backward, which keeps an output without "
                "its graph"
            )
        case HolderKind.FUNCTION:
            return (
                f"{holder.name}() refers to itself through its closure: make it a plain function, or pass the tensor as an "
                "argument"
            )
        case _:
            return (
                f"{holder.name} is part of a reference cycle: make one of its references a weakref.ref, or set it to None "
                "after use"
            )


def _is_clearable(holder: Holder) -> bool:
    return holder.container_type in CLEARABLE and not holder.name.endswith("]")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "all"


def _short(file: str) -> str:
    return file.rpartition("/")[2]
