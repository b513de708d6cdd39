"""Differences between the allocators of PyTorch's versions. Each profile was checked against the real allocator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class AllocatorVersion:
    """The rules of one version of PyTorch."""

    name: str
    """Version of PyTorch as ``major.minor``."""
    ties: Literal["address", "segment", "block"]
    """Choice between free blocks of one size: the lowest address; the oldest segment, then the lowest address; or the
    block that was split off first (PyTorch pull requests 178362, 183591)."""
    pool_is_capture: bool
    """True if a private pool behaves like a graph capture: no cached memory is returned for it."""
    newer_keys: tuple[str, ...]
    """Keys of settings that 2.11 does not have."""
    reserve_bounds_requests: bool = False
    """True if a request for more than an expandable segment reserves is refused at once. Otherwise memory is mapped first."""


_SINCE_2_12: Final = ("throw_on_cudamalloc_oom", "pinned_free_catch_all")
_SINCE_2_13: Final = ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb")
_SINCE_2_15: Final = ("expandable_segments_reserve", "expandable_segments_reserve_by_class")

PROFILES: Final = (
    AllocatorVersion("2.11", ties="address", pool_is_capture=True, newer_keys=()),
    AllocatorVersion("2.12", ties="block", pool_is_capture=True, newer_keys=_SINCE_2_12),
    AllocatorVersion("2.13", ties="segment", pool_is_capture=False, newer_keys=(*_SINCE_2_12, *_SINCE_2_13)),
    AllocatorVersion("2.14", ties="segment", pool_is_capture=False, newer_keys=(*_SINCE_2_12, *_SINCE_2_13)),
    AllocatorVersion(
        "2.15",
        ties="segment",
        pool_is_capture=False,
        newer_keys=(*_SINCE_2_12, *_SINCE_2_13, *_SINCE_2_15),
        reserve_bounds_requests=True,
    ),
)
NEWEST: Final = PROFILES[-1]


def profile_of(version: str) -> tuple[AllocatorVersion, str]:
    """Return the profile for a version such as ``"2.6.0+cu124"``, and a note if it is only the nearest one (else "").

    Snapshot files contain no version. For them ``version`` is ``"2.12 or older"`` or ``"2.13 or newer"``.
    """
    found = re.match(r"(\d+)\.(\d+)(?: or (older|newer))?", version)
    if not found:
        return NEWEST, f"The version of PyTorch is unknown ({version!r}): replayed with the rules of {NEWEST.name}"
    if found[3]:
        near = PROFILES[0] if found[3] == "older" else NEWEST
        return (
            near,
            f"The file is of PyTorch {version}: replayed with the rules of {near.name}",
        )
    asked = int(found[1]), int(found[2])
    for profile in PROFILES:
        if asked == _number(profile):
            return profile, ""
    # Of two equally near versions the older one is used: the changes of the newer one may not have been made yet.
    near = min(PROFILES, key=lambda profile: abs(_minors(_number(profile)) - _minors(asked)))
    return near, (
        f"the allocator of PyTorch {asked[0]}.{asked[1]} was not checked: replayed with the rules of {near.name}"
    )


def _number(profile: AllocatorVersion) -> tuple[int, int]:
    major, minor = profile.name.split(".")
    return int(major), int(minor)


def _minors(number: tuple[int, int]) -> int:
    """Return a version as one number. A difference in the major version is larger than any in the minor version."""
    return number[0] * 1000 + number[1]
