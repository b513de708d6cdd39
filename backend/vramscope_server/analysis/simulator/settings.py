"""Parses PYTORCH_CUDA_ALLOC_CONF as PyTorch does: the same texts are valid, and errors have PyTorch's own text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from vramscope_server.analysis.simulator.versions import NEWEST, PROFILES, AllocatorVersion

MIB: Final = 1 << 20
GIB: Final = 1 << 30
SLOTS: Final = 16
"""Slots of roundup_power2_divisions: slot 0 for requests under 2 MiB, slot i from 2**i MiB on, the last one unbounded."""
UNLIMITED: Final = 1 << 62
"""More than any number of bytes: no limit."""
_UNSIGNED: Final = 1 << 64

_SEPARATORS: Final = re.compile(r"([,:\[\]])")
_WHOLE: Final = re.compile(r"[+-]?\d+")
_REAL: Final = re.compile(
    r"[+-]?(?:0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?\d+)?|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf(?:inity)?)",
    re.IGNORECASE,
)


class BadSetting(ValueError):
    """PyTorch would refuse these settings.

    key     the refused setting; "" if the text ends too early
    reason  text of PyTorch's error
    """

    def __init__(self, key: str, reason: str, words: str = "") -> None:
        super().__init__(f"{key}: {words or reason}" if key else words or reason)
        self.key = key
        self.reason = reason


class NotReplayable(ValueError):
    """There is nothing to replay: no events, or an allocator that is not PyTorch's own."""


@dataclass(frozen=True)
class AddressReserve:
    """Size of the addresses that one expandable segment reserves: a share of the device's memory, or GiB."""

    value: float
    in_gib: bool = False

    def bytes_on(self, device_bytes: int) -> int:
        return min(int(self.value * (GIB if self.in_gib else device_bytes)), UNLIMITED)

    def __str__(self) -> str:
        return f"{self.value!r}{'G' if self.in_gib else ''}"


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings in force in a process that was started with ``text``."""

    text: str = ""
    backend: str = "native"
    large_segment_bytes: int = 20 * MIB
    max_split_bytes: int = UNLIMITED
    """Blocks of at least this size are not split. UNLIMITED: all blocks may be split."""
    max_non_split_rounding_bytes: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    """Fraction of the limit; 0 for no garbage collection."""
    divisions: tuple[int, ...] = (0,) * SLOTS
    """Values of roundup_power2_divisions, one per slot. 0 and 1: sizes are rounded to 512 bytes."""
    expandable_segments: bool = False
    expandable_segments_reserve: AddressReserve | None = None
    """Address range of one segment; None for the default, 9/8 of the device's memory."""
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False

    def reservation_bytes(self, device_bytes: int) -> int:
        """Return the bytes of addresses that one expandable segment reserves on a device, not yet rounded up to pages."""
        whole = device_bytes + device_bytes // 8
        reserve = self.expandable_segments_reserve
        return whole if reserve is None else min(whole, reserve.bytes_on(device_bytes))

    @classmethod
    def parse(cls, text: str, profile: AllocatorVersion = NEWEST) -> AllocatorSettings:
        """Return the settings of a process that starts with ``text`` in PYTORCH_CUDA_ALLOC_CONF.

        Raises BadSetting if that version of PyTorch would raise any error. As in PyTorch, a number ends at its last digit
        (``20abc`` is 20), blanks are ignored, and the last value of a key counts. Any character may separate keys and values.
        """
        tokens = _Tokens([token for token in _SEPARATORS.split("".join(text.split())) if token])
        settings = cls(text=text)
        # The segment size is read first, at any position in the text, because other settings depend on it.
        for at in [at for at, word in enumerate(tokens.words) if word == "large_segment_size_mb"]:
            tokens.at, tokens.key = at, "large_segment_size_mb"
            settings = _large_segment(tokens, settings)
        settings = replace(settings, max_non_split_rounding_bytes=settings.large_segment_bytes)
        settings = cls._read(tokens, settings, _COMMON, profile)
        return cls._read(tokens, settings, _CUDA, profile)

    @classmethod
    def _read(
        cls, tokens: _Tokens, settings: AllocatorSettings, readers: dict[str, _Reader], profile: AllocatorVersion
    ) -> AllocatorSettings:
        """Read the text once. Apply the keys in ``readers``, and skip the other known keys."""
        tokens.at = 0
        while tokens.at < len(tokens.words):
            key = tokens.words[tokens.at]
            tokens.key = key
            if key not in _KEYS and key not in profile.newer_keys:
                parser = "CUDA" if readers is _CUDA else "Accelerator"
                raise BadSetting(key, f"Unrecognized key '{key}' in {parser} allocator config.")
            if key in readers:
                settings = readers[key](tokens, settings)
            else:
                tokens.skip_value()
            tokens.at += 2  # skip the value and the separator after it
        return settings


@dataclass
class _Tokens:
    """Tokens of the text: words, and the characters that separate them."""

    words: list[str]
    at: int = 0
    key: str = field(default="")

    def word(self, at: int) -> str:
        if at >= len(self.words):
            raise BadSetting(
                self.key, "Index out of bounds in ConfigTokenizer", "the text ends where a value should be"
            )
        return self.words[at]

    def value(self) -> str:
        """Move from a key to its value, and return the value."""
        self.at += 2
        return self.word(self.at)

    def skip_value(self) -> None:
        if self.value() != "[":
            return
        while not self.at_end_of_list():
            self.at += 1

    def at_end_of_list(self) -> bool:
        if self.at >= len(self.words):
            reason = "Expected closing bracket ']' in ConfigTokenizer but reached end of config"
            raise BadSetting(self.key, reason, "the list has no ]")
        return self.words[self.at] == "]"

    def whole(self, word: str) -> int:
        """Read a number as C++'s stoull does: the digits at the beginning, modulo 2**64."""
        found = _WHOLE.match(word)
        if not found:
            raise BadSetting(self.key, "stoull", f"{word!r} is not an integer")
        number = int(found[0])
        if abs(number) >= _UNSIGNED:
            raise BadSetting(self.key, "stoull", f"{word} is too large")
        return number % _UNSIGNED

    def real(self, word: str) -> float:
        found = _REAL.match(word)
        if not found:
            raise BadSetting(self.key, "stod", f"{word!r} is not a number")
        return float.fromhex(found[0]) if "x" in found[0].lower() else float(found[0])

    def truth(self) -> bool:
        word = self.value()
        if word not in ("True", "False"):
            raise BadSetting(
                self.key, f"Expected 'True' or 'False' at index {self.at} in ConfigTokenizer but got '{word}'"
            )
        return word == "True"


_Reader = Callable[[_Tokens, AllocatorSettings], AllocatorSettings]


def _is_power_of_two(number: int) -> bool:
    return number > 0 and not number & (number - 1)


def _large_segment(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    mib = tokens.whole(tokens.value())
    if mib <= 10:
        raise BadSetting(tokens.key, "CachingAllocator option large_segment_size_mb must be > 10 MB")
    return replace(settings, large_segment_bytes=min(mib * MIB, UNLIMITED))


def _at_least_a_segment(tokens: _Tokens, settings: AllocatorSettings) -> int:
    mib, least = tokens.whole(tokens.value()), settings.large_segment_bytes // MIB
    if mib < least:
        raise BadSetting(tokens.key, f"CachingAllocator option {tokens.key} too small, must be >= {least}")
    return min(mib * MIB, UNLIMITED)


def _max_split(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    return replace(settings, max_split_bytes=_at_least_a_segment(tokens, settings))


def _max_non_split_rounding(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    return replace(settings, max_non_split_rounding_bytes=min(_at_least_a_segment(tokens, settings), UNLIMITED // 2))


def _garbage_collection(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    threshold = tokens.real(tokens.value())
    if not 0 < threshold < 1:
        raise BadSetting(tokens.key, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
    return replace(settings, garbage_collection_threshold=threshold)


def _fraction(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    fraction = tokens.real(tokens.value())
    if not 0 <= fraction <= 1:
        raise BadSetting(tokens.key, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
    return replace(settings, per_process_memory_fraction=fraction)


def _divisions(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    """Read one number for all sizes, or a list: ``[256:1,512:2,>:4]`` is 1 below 512 MiB, 2 below 1 GiB, and 4 above."""
    word = tokens.value()
    if word != "[":
        number = tokens.whole(word)
        if not _is_power_of_two(number):
            raise BadSetting(tokens.key, "For roundups, the divisions has to be power of 2 ")
        return replace(settings, divisions=(number,) * SLOTS)
    slots, last, is_first = [0] * SLOTS, 0, True
    tokens.at += 1
    while not tokens.at_end_of_list():
        size = tokens.words[tokens.at]
        number = tokens.whole(tokens.value())
        if number and not _is_power_of_two(number):
            reason = "For roundups, the divisions has to be power of 2 or 0 to disable roundup "
            raise BadSetting(tokens.key, reason)
        if size == ">":
            slots[last + 1 :] = [number] * (SLOTS - last - 1)
        else:
            mib = tokens.whole(size)
            if not _is_power_of_two(mib):
                raise BadSetting(tokens.key, "For roundups, the intervals have to be power of 2 ")
            last = min(int(math.log2(mib)), SLOTS - 1)
            if is_first:
                slots[:last] = [number] * last
                is_first = False
            slots[last] = number
        tokens.at += 1
        if tokens.word(tokens.at) != "]":
            tokens.at += 1  # a comma, or any other character
    return replace(settings, divisions=tuple(slots))


def _truth(name: str) -> _Reader:
    """Return a reader that stores True or False in a field. With "" it only checks the value."""

    def read(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
        truth = tokens.truth()
        return replace(settings, **{name: truth}) if name else settings  # type: ignore[arg-type]

    return read


def _whole(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    tokens.whole(tokens.value())
    return settings


def _register_threads(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    number = tokens.whole(tokens.value())
    if not _is_power_of_two(number):
        raise BadSetting(tokens.key, f"Number of register threads has to be power of 2, got {number}")
    if number > 128:
        raise BadSetting(tokens.key, f"Number of register threads should be less than or equal to 128, got {number}")
    return settings


def _reserve(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    """Read a fraction, or a number of GiB followed by G. PyTorch ignores anything else with a warning."""
    word = tokens.value()
    number, in_gib = (word[:-1], True) if word[-1:] in ("G", "g") else (word, False)
    value = tokens.real(number) if _REAL.fullmatch(number) else 0.0
    reserve = AddressReserve(value, in_gib) if 0 < value < math.inf else None
    return replace(settings, expandable_segments_reserve=reserve)


def _reserve_by_class(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    """Skip a list of stream classes. A program names these itself; other streams are not affected."""
    tokens.value()
    tokens.at += 1
    while tokens.word(tokens.at) != "]":
        tokens.value()
        tokens.at += 1
        if tokens.word(tokens.at) == ",":
            tokens.at += 1
    return settings


def _backend(tokens: _Tokens, settings: AllocatorSettings) -> AllocatorSettings:
    name = tokens.value()
    if name not in ("native", "cudaMallocAsync"):
        raise BadSetting(tokens.key, "Unknown allocator backend, options are native and cudaMallocAsync")
    return replace(settings, backend=name)


# PyTorch parses the same text twice: for all accelerators, then for CUDA. Each parser knows the keys of the other.
_COMMON: Final[dict[str, _Reader]] = {
    "large_segment_size_mb": _large_segment,
    "max_split_size_mb": _max_split,
    "max_non_split_rounding_mb": _max_non_split_rounding,
    "garbage_collection_threshold": _garbage_collection,
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _truth("expandable_segments"),
    "pinned_use_background_threads": _truth(""),
    "pinned_reserve_segment_size_mb": _whole,
    "pinned_max_round_threshold_mb": _whole,
    "pinned_max_cached_size_mb": _whole,
}
_CUDA: Final[dict[str, _Reader]] = {
    "backend": _backend,
    "per_process_memory_fraction": _fraction,
    "release_lock_on_cudamalloc": _truth(""),
    "graph_capture_record_stream_reuse": _truth(""),
    "pinned_use_cuda_host_register": _truth(""),
    "pinned_num_register_threads": _register_threads,
    "throw_on_cudamalloc_oom": _truth("throw_on_cudamalloc_oom"),
    "pinned_free_catch_all": _truth(""),
    "expandable_segments_reserve": _reserve,
    "expandable_segments_reserve_by_class": _reserve_by_class,
}
_NEWER: Final = {key for profile in PROFILES for key in profile.newer_keys}
_KEYS: Final = ({*_COMMON, *_CUDA} - _NEWER) | {"release_lock_on_hipmalloc", "pinned_use_hip_host_register"}
