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
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.guard import guarded
from vramscope.memory.counting import unwrapped
from vramscope.steps import zero
from vramscope.trace import buckets
from vramscope.trace.belongings import DEPTH, Belongings
from vramscope.window import OWNER_CATEGORIES

if TYPE_CHECKING:
    import torch

    from vramscope.trace.onlookers import Onlookers

MOST_OWNED: Final = 100_000
"""addresses of one window: 2.4 MB, and 0.1 s to note them"""
MOST_INPUTS: Final = 1000

PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, INPUT = range(len(OWNER_CATEGORIES))
NOBODY: Final = 0
"""in the place of a parameter's identity, for an input"""

_layout, _grad = attrgetter("layout"), attrgetter("grad")


def _few(things: Sequence[Any]) -> list[Any]:
    """The first, the last, and one from the middle."""
    return [things[place] for place in sorted({0, len(things) // 2, len(things) - 1})] if things else []


class Owner(NamedTuple):
    """What an address can belong to."""

    category: int
    what: str
    """``exp_avg`` of a state; "" where the owner is the thing itself"""
    whose: int
    """identity of the parameter or buffer; NOBODY"""


class Noted(NamedTuple):
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

    def __init__(self, roots: Iterable[torch.nn.Module], onlookers: Onlookers) -> None:
        import torch

        self._has = Belongings(onlookers.optimizers, roots, onlookers.models())
        self._tensor = torch.Tensor
        self._plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self._transforming = torch._C._functorch.maybe_current_level
        self._strided, self._sparse = torch.strided, torch.sparse_coo
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
        self._noted: list[Noted] = []
        self._count = 0
        self._still: list[Noted] = []
        """parameters and states, as they were last noted"""
        self._sampled: list[Any] = []
        self._leaves: tuple[int, ...] = ()
        """parameters that were seen to be leaves of the graph, when their gradients were last asked for"""
        self._buckets: Counter[int] = Counter()
        self._gradients_told: set[int] = set()
        """parameters whose gradient was told since the last step ended"""

    @guarded("noting owners")
    def all(self, mark: int) -> None:
        """A window begins: all that is owned."""
        with self._plainly():
            self._buckets = buckets.sizes_of(self._has.outermost)
            self._note_all(mark)

    @guarded("noting owners")
    def stepped(self, mark: int) -> None:
        """A step has ended: gradients and buffers; all that is owned, where a sample shows that it changes.

        A tenth of :meth:`all`: from its second step on a training mostly keeps its parameters and states where they are.
        """
        with self._plainly():
            self._buckets = buckets.sizes_of(self._has.outermost)
            if self._sample() != self._sampled:
                self._note_all(mark)
                return
            self._noted += [still._replace(mark=mark) for still in self._still]
            if not self._gradients_told:
                self._note_gradients(mark, self._has.of_optimizers())
            self._gradients_told.clear()
            self._note_zero(mark)
            self._note_buffers(mark, self._has.buffers_of_those())

    def _note_all(self, mark: int) -> None:
        parameters, buffers = self._has.of_modules()
        parameters.update(self._has.of_optimizers())
        self._has.name_all(parameters)
        self._still = [self._note(mark, self._one_each(PARAMETERS, "", parameters), list(parameters.values()))]
        self._still += [self._note_state(mark, optimizer.state) for optimizer in self._has.optimizers]
        self._note_gradients(mark, {who: one for who, one in parameters.items() if who not in self._gradients_told})
        self._gradients_told.clear()
        self._note_zero(mark)
        self._note_buffers(mark, buffers)
        self._sampled = self._sample()

    def _note_zero(self, mark: int) -> None:
        kept = ((GRADIENTS, buckets.OWNER, zero.gradients()), (PARAMETERS, "parameters of ZeRO", zero.parameters()))
        for category, name, held in kept:
            if held:
                self._note(mark, [self._owner(category, name, NOBODY)] * len(held), held)

    def _note_buffers(self, mark: int, buffers: dict[int, torch.Tensor]) -> None:
        self._has.name_all(buffers)
        self._note(mark, self._one_each(BUFFERS, "", buffers), list(buffers.values()))

    @guarded("noting owners")
    def gradients(self, mark: int) -> None:
        """The optimizer is about to run: there are no more gradients than now."""
        with self._plainly():
            parameters = self._has.of_optimizers()
            self._note_gradients(mark, parameters)
            self._gradients_told.update(parameters)
            self._note_zero(mark)

    @guarded("noting owners")
    def zeros(self, mark: int) -> None:
        """A phase begins: when a backward is over ZeRO's buckets are there, and in the next moment they may be gone."""
        self._note_zero(mark)

    @guarded("noting owners")
    def inputs(self, mark: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins with these arguments, of which nothing is kept."""
        count = 0
        with self._plainly():
            for place, argument in [*enumerate(args), *kwargs.items()]:
                for what, tensor in self._has.tensors(argument, DEPTH):
                    if count == MOST_INPUTS:
                        return
                    count += 1
                    name = ".".join(part for part in (str(place) if isinstance(place, str) else "", what) if part)
                    self._note(mark, [self._owner(INPUT, name or f"argument {place}", NOBODY)], [tensor])

    def columns(
        self, device: int, bounds: list[int], freed: Collection[int], layouts: Sequence[Sequence[dict[str, Any]]] = ()
    ) -> tuple[dict[str, bytes], list[str]]:
        """(columns of window.OWNERS, the names), of one device. On our own thread.

        bounds   the first event behind each mark, and the end
        freed    addresses that were let go in the window: whose owner is told at each boundary, because what lies there may
                 be another tensor by then; any other is told once
        layouts  the device's segments at the window's begin and end
        """
        bucket = self._owner(GRADIENTS, buckets.OWNER, NOBODY) if self._buckets else None
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
                for address in buckets.addresses_of(self._buckets, segments, owned):
                    columns["event"].append(event)
                    columns["address"].append(address)
                    columns["category"].append(GRADIENTS)
                    columns["name"].append(bucket)
        return {name: column.tobytes() for name, column in columns.items()}, list(map(self._name, owners))

    def _sample(self) -> list[Any]:
        """Identity and place of a few parameters and their states: whoever moves or makes anew moves or makes anew these."""
        found: list[Any] = []
        sampled: list[torch.Tensor] = []
        for optimizer in self._has.optimizers:
            groups, state = optimizer.param_groups, optimizer.state
            found += len(groups), len(state)
            for group in _few(groups):
                found.append(len(group["params"]))
                for parameter in _few(group["params"]):
                    sampled.append(parameter)
                    entry = state.get(parameter)
                    if isinstance(entry, dict) and self._plain.issuperset(map(type, entry.values())):
                        sampled += entry.values()
                    else:
                        sampled += [tensor for _, tensor in self._has.tensors(entry, DEPTH)]
        found += map(id, sampled)
        if self._are_plain(sampled):
            found += map(self._address_of, sampled)
        else:
            found += [place for tensor in sampled for place in self._places(tensor)]
        return found

    # -- noting --------------------------------------------------------------------------------------------------------

    def _note_gradients(self, mark: int, parameters: Mapping[int, torch.Tensor]) -> None:
        # (asked for another's gradient, PyTorch warns; what is a leaf stays one, and to ask takes as long as the gradient)
        whose = tuple(parameters)
        if whose != self._leaves:
            parameters = {who: parameter for who, parameter in parameters.items() if parameter.is_leaf}
            whose = self._leaves = tuple(parameters)
        gradients: list[Any] = list(map(_grad, parameters.values()))
        if type(None) in set(map(type, gradients)):
            here = [(who, gradient) for who, gradient in zip(whose, gradients, strict=True) if gradient is not None]
            whose, gradients = tuple(who for who, _ in here), [gradient for _, gradient in here]
        self._note(mark, self._one_each(GRADIENTS, "gradient", whose), gradients)

    def _note_state(self, mark: int, state: Mapping[Any, Any]) -> Noted:
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

    def _note(self, mark: int, owners: Sequence[int], tensors: Sequence[torch.Tensor]) -> Noted:
        if self._are_plain(tensors):
            devices = array("q", map(self._device_of, tensors))
            addresses = array("q", map(self._address_of, tensors))
        else:
            placed = [
                (owner, *place) for owner, one in zip(owners, tensors, strict=True) for place in self._places(one)
            ]
            owners = [owner for owner, _, _ in placed]
            devices, addresses = (array("q", [place[at] for place in placed]) for at in (1, 2))
        noted = Noted(mark, owners, devices, addresses)
        self._count += len(owners)
        if self._count <= MOST_OWNED:
            self._noted.append(noted)
        return noted

    def _are_plain(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Neither wrappers nor sparse: each has one storage, and this is its address."""
        if self._transforming() is not None:
            return False
        return self._plain.issuperset(map(type, tensors)) and {self._strided}.issuperset(map(_layout, tensors))

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
