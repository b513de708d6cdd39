"""The one-line fix that suits the case, and how many bytes it lets go."""

from __future__ import annotations

from vramscope.leaks.autograd.graph_walk import NODE_BYTES
from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.holders.key import HolderKind, Mechanism
from vramscope.leaks.policy import POLICY
from vramscope.process.gc_pause import collector_runs

NO_GRAD = "nothing is walked backward here: put the evaluation under torch.no_grad() or torch.inference_mode()"


def unwalked(module: str) -> str:
    """Of a graph that a step builds and no backward walks."""
    return (
        f"no backward walks what {module} builds here: call it under torch.no_grad(), or requires_grad_(False) on it once, where "
        "it is never trained"
    )


def of(
    kind: str,
    group: Group,
    retained: tuple[str, int, str] | None,
    *,
    chain: bool = False,
    per: str = "step",
) -> tuple[str, int]:
    """(advice, bytes that are let go when it is followed)

    retained   file, line and function of a backward(retain_graph=True), where one was seen
    chain      each step's value is computed from the one before: as many tensors, a longer graph
    per        what ends a round, of series.ROUNDS
    """
    holder = group.holder
    name = holder.name
    if kind in ("growing", "growing-eval"):
        text, freed = _growing(kind, group, chain)
    elif kind == "no_grad-missing":
        text = NO_GRAD
        freed = group.saved_bytes
    elif kind in ("overlap", "overlap-unfreed") and _keeps_frames(holder):
        text, freed = _of_exceptions(holder), group.held_bytes
    elif kind == "overlap-unfreed":
        text, freed = _unfreed(group, retained)
    elif kind == "overlap":
        # (A container's name may be needed: by a hook that fills it, say.)
        let_go = f"{name}.clear()" if _is_to_be_cleared(holder) else f"del {name}"
        if holder.key.kind is HolderKind.UNKNOWN:
            text = "let go of it as soon as the loss is computed"
        elif group.scalars:  # backward begins with it
            text = f"`{let_go}` right after backward (its .item() first, where the number is wanted)"
        elif holder.read_late:
            text = f"`{let_go}` when it has been used for the last time, before the next step begins"
        else:
            text = f"`{let_go}` as soon as the loss is computed (before backward, if nothing needs it later)"
        if holder.kv_cache:
            text += "; `use_cache=False` saves the cache of a language model in training"
        freed = group.held_bytes
    elif kind == "cycle":
        text, freed = _cycle(group), group.held_bytes
    else:
        text, freed = _plain(group, per), group.held_bytes
    return text, freed


def _called(holder: Holder) -> str:
    return "whatever keeps it" if holder.key.kind is HolderKind.UNKNOWN else holder.name


def _plain(group: Group, per: str) -> str:
    """Of tensors without graphs, more from round to round."""
    holder, name = group.holder, _called(group.holder)
    if metric := holder.metric:
        variable = name.rpartition(".")[0] or name
        return (
            f"{metric} keeps every batch until it is reset: {variable}.reset() at the end of each epoch, or "
            f"{metric}(..., compute_on_cpu=True), which keeps them on the host"
        )
    if machinery := _of_machinery(holder):
        return machinery
    if group.models:
        where = "" if group.on_cpu else " on the host"
        return (
            f"{name} keeps {group.models} whole models: keep what is needed of each (a number, a copy of its "
            f"state_dict(){where}), and let the model, its gradients and its optimizer go"
        )
    if group.tensors == 1 and not holder.container:
        where = "" if group.on_cpu else " on the host (.cpu())"
        return (
            f"{name} is made longer again and again, and each time the old one stays until the longer one is there: keep the "
            f"pieces in a list{where} and join them once{', or begin anew each epoch' if per == 'step' else ''}"
        )
    if not group.scalars and group.own_bytes > POLICY.large_view * max(1, group.seen_bytes):
        return (
            f".clone() each before it goes into {name}: it is a part of a larger tensor, which stays whole for it "
            f"({_bytes(group.own_bytes)} for {_bytes(group.seen_bytes)})"
        )
    less = "keep the number (.item())" if group.scalars else "keep less of it (a sum, a mean, the last one)"
    off = "" if group.on_cpu else "move it off the device (.cpu()), "
    if per != "step":
        each = "each batch" if per == "batch" else "each call of the model"
        return f"{name} takes more with {each}: {off}{less}, or write it out and let it go"
    bound = (
        "or empty it more often"
        if holder.emptied_at
        else "bound it (deque(maxlen=...)), or clear it every so many steps"
    )
    return f"{name} takes more each step: {less}, {off}{bound}"


def _of_machinery(holder: Holder) -> str:
    """What to do where the structure keeps, or what keeps is Python's or PyTorch's: links, a cached function, itertools.cycle, a
    dictionary of weak keys, hooks; "" elsewhere."""
    if holder.linked:
        kind, _, attribute = holder.linked.partition(".")
        return (
            f"each {kind} leads to an earlier one by .{attribute}, so that none of them goes: set .{attribute} = None where the "
            f"earlier ones are needed no more, or keep less in each ({holder.name})"
        )
    name = holder.subject
    match holder.mechanism:
        case Mechanism.ITERATOR:
            return (
                "in place of itertools.cycle, which keeps whatever it has given to give it again after the last, go through its "
                "source anew each time (`while True: yield from ...`)"
            )
        case Mechanism.EVALUATION_OUTPUTS:
            return (
                "Trainer keeps the predictions of a whole evaluation on the device: eval_accumulation_steps in TrainingArguments "
                "takes them to the host every so many batches, preprocess_logits_for_metrics keeps less of each (argmax, say)"
            )
        case Mechanism.WEAK_KEYS:
            return (
                f"an entry of {name} goes when its key goes, and the keys are kept elsewhere: keep less there "
                "(a number, an index)"
            )
        case Mechanism.CACHED_FUNCTION:
            return (
                f"{name} is cached, and asked for something new each step: bound it (lru_cache(maxsize=...)), call "
                f"{name}.cache_clear() at the end of each epoch, or do not cache what depends on the step"
            )
        case Mechanism.HOOKS:
            return f"hooks are added to {name} and none goes: keep what register_*_hook gives, and .remove() it when it is used"
        case Mechanism.CLOSURE:
            return (
                f"each step makes another {name}, with what it refers to, and whoever got it keeps it: of a hook keep what "
                "register_hook gives and .remove() it, or make the function once"
            )
    return ""


def _growing(kind: str, group: Group, chain: bool) -> tuple[str, int]:
    name = _called(group.holder)
    if machinery := _of_machinery(group.holder):
        return machinery, group.held_bytes
    under = "compute it under torch.no_grad() and " if kind == "growing-eval" else ""
    if _keeps_frames(group.holder):
        return _of_exceptions(group.holder), group.held_bytes
    if chain and not group.scalars:
        if kind == "growing-eval":
            return (
                "nothing is walked backward here: put it under torch.no_grad(), so that no graph is carried over",
                group.saved_bytes,
            )
        each = "each of its tensors" if group.graphs > 1 or not group.holder.named else f"`{name} = {name}.detach()`"
        if group.holder.written:
            each = f"what is written into {name}, as in `{name}[...] = value.detach()`"
        return (
            f"detach what is carried over from step to step: {each}, or compute it under torch.no_grad()",
            group.saved_bytes,
        )
    if group.scalars and not chain and group.own_bytes > POLICY.large_scalar_bytes * group.tensors:
        return (
            f"keep the number: .item() before it goes into {name}; .detach() would keep the storage that each of these scalars "
            f"stands on, {_bytes(group.own_bytes // group.tensors)}",
            group.held_bytes,
        )
    if group.scalars:
        what = ".item()" if kind == "growing" else ".item(), under torch.no_grad()"
        return f"keep the number, not its graph: {what} (or .detach()) before it goes into {name}", group.held_bytes
    own, saved = group.own_bytes, group.saved_bytes
    if own > saved:
        where = "reduce it" if group.on_cpu else "move it to the host (.detach().cpu()) or reduce it"
        return (
            f"{under}{where} before it goes into {name}: the tensors themselves are {_share(own, own + saved)} of what is held, "
            f".detach() alone frees {_of_graphs(saved, group)}",
            group.held_bytes,
        )
    entries = "them" if group.holder.key.kind is HolderKind.UNKNOWN else f"{name}'s entries"
    return (
        f"{under}store {entries} with .detach(): that frees the graphs, {_of_graphs(saved, group)}; the tensors are "
        f"{_bytes(own)}",
        saved,
    )


def _keeps_frames(holder: Holder) -> bool:
    return holder.through_traceback


def _of_exceptions(holder: Holder) -> str:
    what = "exceptions, whose tracebacks keep" if holder.container else "an exception, whose traceback keeps"
    return (
        f"{holder.name} keeps {what} all variables of the functions that it came out of: keep the text (str(error)), or "
        "error.with_traceback(None)"
    )


def _of_graphs(saved: int, group: Group) -> str:
    nodes = f"about {_bytes(group.nodes * NODE_BYTES)} of host memory in autograd nodes"
    return f"{_bytes(saved)} and {nodes}" if saved else nodes


def _unfreed(group: Group, retained: tuple[str, int, str] | None) -> tuple[str, int]:
    name = group.holder.name
    if group.attributes:
        file, line, attribute, size = max(group.attributes, key=lambda entry: entry[3])
        where = f" ({_short(file)}:{line})" if line else ""
        names = sorted({entry[2] for entry in group.attributes}, key=lambda name: name != attribute)
        others = f" and {names[1] if len(names) == 2 else f'{len(names) - 1} more'}" if names[1:] else ""
        return (
            f"backward does not free attributes of ctx: use ctx.save_for_backward in place of {attribute}{where}{others}, "
            f"{'up to ' if others else ''}{_bytes(size)} each; or `del {name}` at the end of the step",
            group.held_bytes,
        )
    if retained is not None:
        return (
            f"drop retain_graph=True ({_short(retained[0])}:{retained[1]}) if no second backward needs it, "
            f"or `del {name}` at the end of the step",
            group.held_bytes,
        )
    return (
        f"backward never went through {name}'s part of the graph, so nothing freed it: compute it under torch.no_grad(), "
        f"detach() its input, or `del {name}` at the end of the step",
        group.held_bytes,
    )


def _cycle(group: Group) -> str:
    holder = group.holder
    if holder.key.kind is HolderKind.CREATE_GRAPH:
        return (
            "no garbage collector frees these: set .grad = None when the gradients are used, or take them by "
            "torch.autograd.grad(..., create_graph=True) in place of backward(create_graph=True)"
        )
    # (As some do, who collect every so many steps.)
    off = (
        ""
        if collector_runs()
        else "; the garbage collector is switched off: nothing but gc.collect() frees it as it is"
    )
    return _cut(holder) + off


def _cut(holder: Holder) -> str:
    """What would end a cycle of Python's objects."""
    if holder.key.kind is HolderKind.FRAME:
        return (
            f"an exception and the frame that keeps it refer to each other: `del {holder.name}` when it is dealt with, "
            "or keep its text only"
        )
    if holder.key.kind is HolderKind.AUTOGRAD_CONTEXT:
        return f"ctx keeps {holder.name}, whose graph keeps ctx: use ctx.save_for_backward, which keeps an output without its graph"
    if holder.key.kind is HolderKind.FUNCTION:
        return f"{holder.name}() refers to itself through its closure: make it a plain function, or pass the tensor as an argument"
    return f"{holder.name} leads back to its own object: use weakref.ref for one of the two directions, or cut it when done"


def _is_to_be_cleared(holder: Holder) -> bool:
    """Whether it is one of Python's own containers, which somebody fills anew; a library's result is a dict too, and made anew."""
    return holder.container_type in (
        "dict",
        "list",
        "set",
        "deque",
        "defaultdict",
        "OrderedDict",
    ) and not holder.name.endswith("]")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "all"


def _short(file: str) -> str:
    return file.rpartition("/")[2]


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
