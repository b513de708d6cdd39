"""Owners of addresses at the boundaries of a window's steps: parameters, gradients, optimizer state, buffers, inputs,
workspaces.

The allocator's events have no owners. So the addresses of named tensors are read at the begin of a step, before its optimizer,
and at its end. Only addresses are stored, never tensors. Reading takes about 1 µs per tensor between the kernels of a training,
where caches are cold. Names are looked up once, and repetitions are removed later on the agent's own thread.
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
from vramscope.memory.pytorch_snapshot import SnapshotSegment
from vramscope.memory.tensor_bytes import unwrapped
from vramscope.protocol.window import OWNER_CATEGORIES
from vramscope.recording.named_tensors import DEPTH, NamedTensors
from vramscope.recording.workspace_marks import WorkspaceMarks

if TYPE_CHECKING:
    import torch

    from vramscope.recording.untracked_models import UntrackedModels

MAX_OWNED: Final = 100_000
"""Maximum number of addresses of one window: 2.4 MB, and 0.1 s to record them."""
MAX_INPUTS: Final = 1000

PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, INPUT, COPIES, WORKSPACES = range(len(OWNER_CATEGORIES))
NO_BUCKETS: Final[Counter[int]] = Counter()
NO_ID: Final = 0
"""Owner id of tensors without a parameter, such as inputs."""

_grad = attrgetter("grad")


def _few(things: Sequence[Any]) -> Sequence[Any]:
    """Return the first, the last, and one from the middle."""
    return things if len(things) < 4 else (things[0], things[len(things) // 2], things[-1])


class Owner(NamedTuple):
    """Owner of an address."""

    category: int
    what: str
    """``exp_avg`` of a state; "" if the parameter or buffer itself is the owner."""
    owner_id: int
    """Id of the parameter or buffer; NO_ID if there is none."""


class OwnedAddresses(NamedTuple):
    """Some owners and their addresses at one boundary, in parallel lists."""

    mark: int
    owners: Sequence[int]
    """Positions among all owners."""
    devices: array[int]
    """Device numbers; -1: not on CUDA."""
    addresses: array[int]


class Owners:
    """Owners of one window. For the training thread, except for :meth:`columns`.

    roots       a live view (a weak set)
    other_models   untracked models
    """

    def __init__(self, roots: Collection[torch.nn.Module], other_models: UntrackedModels) -> None:
        import torch

        self._copies = other_models.copies
        self._has = NamedTensors(other_models.optimizers, roots, other_models.models())
        self._tensor = torch.Tensor
        self._plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self._transforming = torch._C._functorch.maybe_current_level
        self._sparse = torch.sparse_coo
        self._strided = torch.strided
        self._device_of = torch.Tensor.get_device
        # address of the storage; untyped_storage() makes another object, and its data_ptr() copies a copy-on-write
        # storage
        self._address_of: Callable[[torch.Tensor], int] = getattr(
            torch._C, "_data_address", lambda tensor: tensor.untyped_storage().data_ptr()
        )
        # A default device is a mode around each method of each tensor: 2 µs a call.
        self._plainly = torch._C.DisableTorchFunction
        self._owners: dict[Owner, int] = {}
        self._lists: dict[Any, list[int]] = {}
        """Cached lists of positions among the owners, which are mostly the same at each boundary."""
        self._recorded: list[OwnedAddresses] = []
        self._workspaces = WorkspaceMarks()
        self._count = 0
        self._last_parameters_and_states: list[OwnedAddresses] = []
        """Parameters and states at their last recording."""
        self._sampled: list[Any] = []
        self._gradients_of: list[int] = []
        """Ids of the parameters whose gradients were last recorded, as the groups have them."""
        self._leaves: list[bool] = []
        """For each of these: whether it is a leaf of the graph and occurs for the first time."""
        self._gradient_owners: list[int] = []
        """Positions of their gradients among the owners, once each of them has had one."""
        self._buckets = NO_BUCKETS
        self._searches_copies = True
        """True if copies of the weights are searched for at the end of this step."""
        self._recorded_gradients: list[list[int]] = []
        """Ids of parameters whose gradients were recorded since the last step ended, once per recording."""

    @guarded("recording owners")
    def all(self, mark: int) -> None:
        """Record everything that is owned, at the begin of a window."""
        with self._plainly():
            self._buckets = self._bucket_sizes()
            self._record_all(mark)
            self._record_copies(mark)
            self._workspaces.read(mark)

    @guarded("recording owners")
    def step_ended(self, mark: int) -> None:
        """Record gradients and buffers at the end of a step; everything, if a sample shows that it changed.

        Takes a tenth of :meth:`all`: from its second step on a training mostly leaves its parameters and states in place.
        """
        with self._plainly():
            self._buckets = self._bucket_sizes()
            self._workspaces.read(mark)
            if self._searches_copies:  # a window may begin with the optimizer, before a checkpoint is read
                self._searches_copies = False
                self._record_copies(mark)
            if self._sample() != self._sampled:
                self._record_all(mark)
                return
            self._recorded += [OwnedAddresses(mark, *kept[1:]) for kept in self._last_parameters_and_states]
            if not self._recorded_gradients:
                self._record_gradients(mark, self._has.of_optimizers())
            self._recorded_gradients.clear()
            self._record_zero(mark)
            self._record_buffers(mark, self._has.known_buffers())

    def _record_all(self, mark: int) -> None:
        parameters, buffers = self._has.of_modules()
        parameters.update((id(one), one) for one in chain.from_iterable(self._has.of_optimizers()))
        self._has.name_all(parameters)
        self._last_parameters_and_states = [
            self._record(mark, self._one_each(PARAMETERS, "", parameters), list(parameters.values()))
        ]
        self._last_parameters_and_states += [
            self._record_state(mark, optimizer.state) for optimizer in self._has.optimizers
        ]
        recorded = set(chain.from_iterable(self._recorded_gradients))
        self._record_gradients(mark, [[one for who, one in parameters.items() if who not in recorded]])
        self._recorded_gradients.clear()
        self._record_zero(mark)
        self._record_buffers(mark, buffers)
        self._sampled = self._sample()

    def _record_copies(self, mark: int) -> None:
        copies = self._copies()
        self._record(mark, [self._owner(COPIES, name, NO_ID) for name, _ in copies], [tensor for _, tensor in copies])

    def _bucket_sizes(self) -> Counter[int]:
        wrappers = self._has.wrappers
        return ddp_buckets.sizes_of(wrappers) if wrappers else NO_BUCKETS

    def _record_zero(self, mark: int) -> None:
        if not deepspeed_zero.takes_gradients():
            return
        kept = (
            (GRADIENTS, ddp_buckets.OWNER, deepspeed_zero.gradients()),
            (PARAMETERS, "parameters of ZeRO", deepspeed_zero.parameters()),
        )
        for category, name, tensors in kept:
            if tensors:
                self._record(mark, [self._owner(category, name, NO_ID)] * len(tensors), tensors)

    def _record_buffers(self, mark: int, buffers: dict[int, torch.Tensor]) -> None:
        if not buffers:
            return
        if (BUFFERS, tuple(buffers)) not in self._lists:
            self._has.name_all(buffers)
        self._record(mark, self._one_each(BUFFERS, "", buffers), list(buffers.values()))

    @guarded("recording owners")
    def gradients(self, mark: int) -> None:
        """Record gradients before the optimizer runs, when all of them exist."""
        with self._plainly():
            self._record_gradients(mark, self._has.of_optimizers())
            self._recorded_gradients.append(self._gradients_of)
            self._record_zero(mark)

    @guarded("recording owners")
    def zero_buckets(self, mark: int) -> None:
        """Record ZeRO's buckets at the begin of a phase: they exist after a backward and may be freed shortly after."""
        self._record_zero(mark)

    @guarded("recording owners")
    def inputs(self, mark: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the arguments of a forward that begins; they are not retained."""
        with self._plainly():
            owners, tensors = [], []
            for what, tensor in islice(self._inputs(args, kwargs), MAX_INPUTS):
                owners.append(self._owner(INPUT, what, NO_ID))
                tensors.append(tensor)
            self._record(mark, owners, tensors)

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
        self, device: int, bounds: list[int], freed: Collection[int], layouts: Sequence[Sequence[SnapshotSegment]] = ()
    ) -> tuple[dict[str, bytes], list[str]]:
        """Return columns of window.OWNERS and the names, for one device. On the agent's own thread.

        bounds   the first event after each mark, and the end
        freed    addresses that were freed in the window. Their owner is repeated at each boundary, because another tensor
                 may have the address by then. Others are recorded once
        layouts  the device's segments at the window's begin and end
        """
        bucket = self._owner(GRADIENTS, ddp_buckets.OWNER, NO_ID) if self._buckets else None
        workspace = self._owner(WORKSPACES, "cuBLAS workspace", NO_ID)
        owners = list(self._owners)
        columns = {name: array("q") for name in ("event", "address", "category", "name")}
        recorded: set[tuple[int, int]] = set()
        for addresses_of_owners in self._recorded:
            event = bounds[min(addresses_of_owners.mark, len(bounds) - 1)]
            for number, of, address in zip(
                addresses_of_owners.owners, addresses_of_owners.devices, addresses_of_owners.addresses, strict=True
            ):
                if of == device and address and ((number, address) not in recorded or address in freed):
                    recorded.add((number, address))
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
        for event, address in self._workspaces.rows(bounds):  # no other device has a block at this address
            for name, value in zip(columns, (event, address, WORKSPACES, workspace), strict=True):
                columns[name].append(value)
        return {name: column.tobytes() for name, column in columns.items()}, list(map(self._name, owners))

    def _sample(self) -> list[Any]:
        """Return ids and addresses of a few parameters and their states. If any of them moves or is made again, so do
        these."""
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
        found += [place for one in sampled for place in self._addresses_in(one)] if addresses is None else addresses
        return found

    # -- noting --------------------------------------------------------------------------------------------------------

    def _record_gradients(self, mark: int, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        parameter_ids = list(map(id, chain.from_iterable(groups)))
        if parameter_ids != self._gradients_of:
            # PyTorch warns if the gradient of a non-leaf is read. A leaf stays one, and asking takes as long as the
            # gradient.
            seen: set[int] = set()
            self._gradients_of, self._leaves, self._gradient_owners = parameter_ids, [], []
            for who, one in zip(parameter_ids, chain.from_iterable(groups), strict=True):
                self._leaves.append(one.is_leaf and who not in seen)
                seen.add(who)
        gradients: list[Any] = list(map(_grad, compress(chain.from_iterable(groups), self._leaves)))
        kinds = set(map(type, gradients))
        owners = self._gradient_owners
        if type(None) in kinds or not owners:
            # a parameter without a gradient does not count: this tells a model that trains from others
            there = [gradient is not None for gradient in gradients]
            owners = self._one_each(GRADIENTS, "gradient", compress(compress(parameter_ids, self._leaves), there))
            gradients = list(compress(gradients, there))
            if type(None) not in kinds:
                self._gradient_owners = owners
            kinds.discard(type(None))
        self._record(mark, owners, gradients, kinds)

    def _record_state(self, mark: int, state: Mapping[Any, Any]) -> OwnedAddresses:
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
                self._owner(OPTIMIZER, str(what), owner_id) for owner_id, entry in names for what in entry
            ]
        return self._record(mark, owners, flat)

    def _one_each(self, category: int, what: str, things: Iterable[int]) -> list[int]:
        key = (category, tuple(things))
        known = self._lists.get(key)
        if known is None:
            known = self._lists[key] = [self._owner(category, what, owner_id) for owner_id in key[1]]
        return known

    def _owner(self, category: int, what: str, owner_id: int) -> int:
        return self._owners.setdefault(Owner(category, what, owner_id), len(self._owners))

    def _record(
        self, mark: int, owners: Sequence[int], tensors: Sequence[torch.Tensor], kinds: set[type] | None = None
    ) -> OwnedAddresses:
        addresses = self._addresses(tensors, set(map(type, tensors)) if kinds is None else kinds)
        if addresses is not None:
            devices = array("q", map(self._device_of, tensors))
        else:
            placed = [
                (owner, *place) for owner, one in zip(owners, tensors, strict=True) for place in self._addresses_in(one)
            ]
            owners = [owner for owner, _, _ in placed]
            devices, addresses = (array("q", [place[at] for place in placed]) for at in (1, 2))
        addresses_of_owners = OwnedAddresses(mark, owners, devices, addresses)
        self._count += len(owners)
        if self._count <= MAX_OWNED:
            self._recorded.append(addresses_of_owners)
        return addresses_of_owners

    def _addresses(self, tensors: Iterable[torch.Tensor], kinds: set[type]) -> array[int] | None:
        """Return the addresses of the tensors' storages; None if a wrapper or sparse tensor has no storage, or several."""
        if self._transforming() is None and self._plain >= kinds:
            try:
                return array("q", map(self._address_of, tensors))
            except NotImplementedError:  # a sparse tensor
                pass
        return None

    def _addresses_in(self, tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
        """Yield (device, address) of the storages under a tensor on a GPU.

        Wrappers are opened: DTensor, quantised states, torch.func's.
        """
        tensor = unwrapped(tensor)
        flatten = None if type(tensor) in self._plain else getattr(tensor, "__tensor_flatten__", None)
        if flatten is not None:
            for name in flatten()[0]:
                inner = getattr(tensor, name)
                if isinstance(inner, self._tensor):  # a DTensor also names its mesh
                    yield from self._addresses_in(inner)
        elif tensor.layout is self._strided:
            if tensor.is_cuda:
                yield tensor.get_device(), self._address_of(tensor)
        elif tensor.layout is self._sparse:
            yield from self._addresses_in(tensor._indices())
            yield from self._addresses_in(tensor._values())

    def _name(self, owner: Owner) -> str:
        name = self._has.names.get(owner.owner_id, "")
        return f"{owner.what} of {name}" if owner.what and name else owner.what or name
