"""Who owns which address, noted at the boundaries of a window's steps: parameters, gradients, optimizer state, buffers, inputs.

Between two boundaries the allocator's events say what came and went; here is what the program had a name for when a step
began, when its optimizer was about to run, and when it ended. Addresses are noted, never a tensor, whole lists at a time: about
1 µs a tensor between a training's kernels, where nothing is in the caches. What they are called is worked out once, and what is
told twice is left out later, on our own thread.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.guard import guarded
from vramscope.memory import ddp_buckets, deepspeed_zero
from vramscope.memory.tensor_bytes import unwrapped
from vramscope.protocol.window import OWNER_CATEGORIES
from vramscope.recording.named_tensors import DEPTH, NamedTensors

if TYPE_CHECKING:
    import torch

    from vramscope.recording.untracked_models import UntrackedModels

MOST_OWNED: Final = 100_000
"""addresses of one window: 2.4 MB, and 0.1 s to note them"""
MOST_INPUTS: Final = 1000

PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, INPUT = range(len(OWNER_CATEGORIES))
NO_BUCKETS: Final[Counter[int]] = Counter()
NOBODY: Final = 0
"""in the place of a parameter's identity, for an input"""

_grad = attrgetter("grad")


def _few(things: Sequence[Any]) -> Sequence[Any]:
    """The first, the last, and one from the middle."""
    return things if len(things) < 4 else (things[0], things[len(things) // 2], things[-1])


class Owner(NamedTuple):
    """What an address can belong to."""

    category: int
    what: str
    """``exp_avg`` of a state; "" where the owner is the thing itself"""
    whose: int
    """identity of the parameter or buffer; NOBODY"""


class OwnedAddresses(NamedTuple):
    """Some owners and their addresses at one boundary, side by side."""

    mark: int
    owners: Sequence[int]
    """positions among all owners"""
    devices: array[int]
    """-1: none of CUDA's"""
    addresses: array[int]


class Owners:
    """What belongs to whom in one window. On the training thread, but for :meth:`columns`.

    roots       a live view (weak set)
    onlookers   what else there is
    """

    def __init__(self, roots: Collection[torch.nn.Module], onlookers: UntrackedModels) -> None:
        import torch

        self._has = NamedTensors(onlookers.optimizers, roots, onlookers.models())
        self._tensor = torch.Tensor
        self._plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self._transforming = torch._C._functorch.maybe_current_level
        self._sparse = torch.sparse_coo
        self._strided = torch.strided
        self._device_of = torch.Tensor.get_device
        # (of its storage; an untyped_storage() is an object more, and its data_ptr() would copy what is to be copied on write)
        self._address_of: Callable[[torch.Tensor], int] = getattr(
            torch._C, "_data_address", lambda tensor: tensor.untyped_storage().data_ptr()
        )
        # A default device is a mode in front of each method of each tensor: 2 µs a call.
        self._plainly = torch._C.DisableTorchFunction
        self._owners: dict[Owner, int] = {}
        self._lists: dict[Any, list[int]] = {}
        """positions among the owners, by what they were asked for with: mostly the same at each boundary"""
        self._noted: list[OwnedAddresses] = []
        self._count = 0
        self._still: list[OwnedAddresses] = []
        """parameters and states, as they were last noted"""
        self._sampled: list[Any] = []
        self._asked: list[int] = []
        """whose gradients were last asked for, as the groups have them"""
        self._leaves: list[bool] = []
        """of these, which are leaves of the graph, and there for the first time"""
        self._of_all: list[int] = []
        """positions of their gradients among the owners, once each of them has had one"""
        self._buckets = NO_BUCKETS
        self._gradients_told: list[list[int]] = []
        """parameters whose gradient was told since the last step ended, at each time"""

    @guarded("noting owners")
    def all(self, mark: int) -> None:
        """A window begins: all that is owned."""
        with self._plainly():
            self._buckets = self._bucket_sizes()
            self._note_all(mark)

    @guarded("noting owners")
    def stepped(self, mark: int) -> None:
        """A step has ended: gradients and buffers; all that is owned, where a sample shows that it changes.

        A tenth of :meth:`all`: from its second step on a training mostly keeps its parameters and states where they are.
        """
        with self._plainly():
            self._buckets = self._bucket_sizes()
            if self._sample() != self._sampled:
                self._note_all(mark)
                return
            self._noted += [OwnedAddresses(mark, *still[1:]) for still in self._still]
            if not self._gradients_told:
                self._note_gradients(mark, self._has.of_optimizers())
            self._gradients_told.clear()
            self._note_zero(mark)
            self._note_buffers(mark, self._has.buffers_of_those())

    def _note_all(self, mark: int) -> None:
        parameters, buffers = self._has.of_modules()
        parameters.update((id(one), one) for one in chain.from_iterable(self._has.of_optimizers()))
        self._has.name_all(parameters)
        self._still = [self._note(mark, self._one_each(PARAMETERS, "", parameters), list(parameters.values()))]
        self._still += [self._note_state(mark, optimizer.state) for optimizer in self._has.optimizers]
        told = set(chain.from_iterable(self._gradients_told))
        self._note_gradients(mark, [[one for who, one in parameters.items() if who not in told]])
        self._gradients_told.clear()
        self._note_zero(mark)
        self._note_buffers(mark, buffers)
        self._sampled = self._sample()

    def _bucket_sizes(self) -> Counter[int]:
        wrappers = self._has.wrappers
        return ddp_buckets.sizes_of(wrappers) if wrappers else NO_BUCKETS

    def _note_zero(self, mark: int) -> None:
        if not deepspeed_zero.takes_gradients():
            return
        kept = (
            (GRADIENTS, ddp_buckets.OWNER, deepspeed_zero.gradients()),
            (PARAMETERS, "parameters of ZeRO", deepspeed_zero.parameters()),
        )
        for category, name, held in kept:
            if held:
                self._note(mark, [self._owner(category, name, NOBODY)] * len(held), held)

    def _note_buffers(self, mark: int, buffers: dict[int, torch.Tensor]) -> None:
        if not buffers:
            return
        if (BUFFERS, tuple(buffers)) not in self._lists:
            self._has.name_all(buffers)
        self._note(mark, self._one_each(BUFFERS, "", buffers), list(buffers.values()))

    @guarded("noting owners")
    def gradients(self, mark: int) -> None:
        """The optimizer is about to run: there are no more gradients than now."""
        with self._plainly():
            self._note_gradients(mark, self._has.of_optimizers())
            self._gradients_told.append(self._asked)
            self._note_zero(mark)

    @guarded("noting owners")
    def zeros(self, mark: int) -> None:
        """A phase begins: when a backward is over ZeRO's buckets are there, and in the next moment they may be gone."""
        self._note_zero(mark)

    @guarded("noting owners")
    def inputs(self, mark: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins with these arguments, of which nothing is kept."""
        with self._plainly():
            owners, tensors = [], []
            for what, tensor in islice(self._inputs(args, kwargs), MOST_INPUTS):
                owners.append(self._owner(INPUT, what, NOBODY))
                tensors.append(tensor)
            self._note(mark, owners, tensors)

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        for place, argument in enumerate(args):
            if type(argument) is self._tensor:
                yield f"argument {place}", argument
            else:
                for what, tensor in self._has.tensors(argument, DEPTH):
                    yield what or f"argument {place}", tensor
        for name, argument in kwargs.items():
            for what, tensor in self._has.tensors(argument, DEPTH):
                yield f"{name}.{what}" if what else name, tensor

    def columns(
        self, device: int, bounds: list[int], freed: Collection[int], layouts: Sequence[Sequence[dict[str, Any]]] = ()
    ) -> tuple[dict[str, bytes], list[str]]:
        """(columns of window.OWNERS, the names), of one device. On our own thread.

        bounds   the first event behind each mark, and the end
        freed    addresses that were let go in the window: whose owner is told at each boundary, because what lies there may
                 be another tensor by then; any other is told once
        layouts  the device's segments at the window's begin and end
        """
        bucket = self._owner(GRADIENTS, ddp_buckets.OWNER, NOBODY) if self._buckets else None
        owners = list(self._owners)
        columns = {name: array("q") for name in ("event", "address", "category", "name")}
        told: set[tuple[int, int]] = set()
        for noted in self._noted:
            event = bounds[min(noted.mark, len(bounds) - 1)]
            for number, of, address in zip(noted.owners, noted.devices, noted.addresses, strict=True):
                if of == device and address and ((number, address) not in told or address in freed):
                    told.add((number, address))
                    columns["event"].append(event)
                    columns["address"].append(address)
                    columns["category"].append(owners[number].category)
                    columns["name"].append(number)
        if bucket is not None:
            owned = set(columns["address"])
            for event, segments in zip((bounds[0], bounds[-1]), layouts, strict=False):
                for address in ddp_buckets.addresses_of(self._buckets, segments, owned):
                    columns["event"].append(event)
                    columns["address"].append(address)
                    columns["category"].append(GRADIENTS)
                    columns["name"].append(bucket)
        return {name: column.tobytes() for name, column in columns.items()}, list(map(self._name, owners))

    def _sample(self) -> list[Any]:
        """Identity and place of a few parameters and their states: whoever moves or makes anew moves or makes anew these."""
        found: list[Any] = []
        sampled: list[Any] = []
        for optimizer in self._has.optimizers:
            groups, state = optimizer.param_groups, optimizer.state
            found += len(groups), len(state)
            for group in _few(groups):
                parameters = group["params"]
                found.append(len(parameters))
                for parameter in _few(parameters):
                    sampled.append(parameter)
                    entry = state.get(parameter)
                    if type(entry) is dict:
                        sampled += entry.values()
                    elif entry is not None:
                        sampled.append(entry)
        kinds = set(map(type, sampled))
        if not kinds <= self._plain:  # numbers, lists, wrappers
            sampled = [tensor for one in sampled for _, tensor in self._has.tensors(one, DEPTH)]
            kinds = set(map(type, sampled))
        found += map(id, sampled)
        addresses = self._addresses(sampled, kinds)
        found += [place for one in sampled for place in self._places(one)] if addresses is None else addresses
        return found

    # -- noting --------------------------------------------------------------------------------------------------------

    def _note_gradients(self, mark: int, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        asked = list(map(id, chain.from_iterable(groups)))
        if asked != self._asked:
            # (asked for another's gradient, PyTorch warns; what is a leaf stays one, and to ask takes as long as the gradient)
            seen: set[int] = set()
            self._asked, self._leaves, self._of_all = asked, [], []
            for who, one in zip(asked, chain.from_iterable(groups), strict=True):
                self._leaves.append(one.is_leaf and who not in seen)
                seen.add(who)
        gradients: list[Any] = list(map(_grad, compress(chain.from_iterable(groups), self._leaves)))
        kinds = set(map(type, gradients))
        owners = self._of_all
        if type(None) in kinds or not owners:
            # (who has none owns none: by that a model that learns is told from others)
            there = [gradient is not None for gradient in gradients]
            owners = self._one_each(GRADIENTS, "gradient", compress(compress(asked, self._leaves), there))
            gradients = list(compress(gradients, there))
            if type(None) not in kinds:
                self._of_all = owners
            kinds.discard(type(None))
        self._note(mark, owners, gradients, kinds)

    def _note_state(self, mark: int, state: Mapping[Any, Any]) -> OwnedAddresses:
        entries: list[Any] = list(state.values())
        flat: list[Any] = []
        if {dict}.issuperset(map(type, entries)):
            flat = list(chain.from_iterable(map(dict.values, entries)))
        if not flat or not self._plain.issuperset(map(type, flat)):  # numbers, lists, wrappers
            entries = [
                dict(self._has.tensors(entry, DEPTH, "" if isinstance(entry, dict) else "state")) for entry in entries
            ]
            flat = list(chain.from_iterable(map(dict.values, entries)))
        names = tuple(zip(map(id, state), map(tuple, entries), strict=True))
        key = (OPTIMIZER, names)
        owners = self._lists.get(key)
        if owners is None:
            owners = self._lists[key] = [
                self._owner(OPTIMIZER, str(what), whose) for whose, entry in names for what in entry
            ]
        return self._note(mark, owners, flat)

    def _one_each(self, category: int, what: str, things: Iterable[int]) -> list[int]:
        key = (category, tuple(things))
        known = self._lists.get(key)
        if known is None:
            known = self._lists[key] = [self._owner(category, what, whose) for whose in key[1]]
        return known

    def _owner(self, category: int, what: str, whose: int) -> int:
        return self._owners.setdefault(Owner(category, what, whose), len(self._owners))

    def _note(
        self, mark: int, owners: Sequence[int], tensors: Sequence[torch.Tensor], kinds: set[type] | None = None
    ) -> OwnedAddresses:
        addresses = self._addresses(tensors, set(map(type, tensors)) if kinds is None else kinds)
        if addresses is not None:
            devices = array("q", map(self._device_of, tensors))
        else:
            placed = [
                (owner, *place) for owner, one in zip(owners, tensors, strict=True) for place in self._places(one)
            ]
            owners = [owner for owner, _, _ in placed]
            devices, addresses = (array("q", [place[at] for place in placed]) for at in (1, 2))
        noted = OwnedAddresses(mark, owners, devices, addresses)
        self._count += len(owners)
        if self._count <= MOST_OWNED:
            self._noted.append(noted)
        return noted

    def _addresses(self, tensors: Iterable[torch.Tensor], kinds: set[type]) -> array[int] | None:
        """Of each one's storage; None where there are wrappers or sparse ones among them, which have none or several."""
        if self._transforming() is None and self._plain >= kinds:
            try:
                return array("q", map(self._address_of, tensors))
            except NotImplementedError:  # a sparse one
                pass
        return None

    def _places(self, tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
        """(device, address) of the storages under a tensor on a GPU.

        Wrappers are opened: DTensor, quantised states, torch.func's."""
        tensor = unwrapped(tensor)
        flatten = None if type(tensor) in self._plain else getattr(tensor, "__tensor_flatten__", None)
        if flatten is not None:
            for name in flatten()[0]:
                inner = getattr(tensor, name)
                if isinstance(inner, self._tensor):  # (a DTensor names its mesh, too)
                    yield from self._places(inner)
        elif tensor.layout is self._strided:
            if tensor.is_cuda:
                yield tensor.get_device(), self._address_of(tensor)
        elif tensor.layout is self._sparse:
            yield from self._places(tensor._indices())
            yield from self._places(tensor._values())

    def _name(self, owner: Owner) -> str:
        name = self._has.names.get(owner.whose, "")
        return f"{owner.what} of {name}" if owner.what and name else owner.what or name
