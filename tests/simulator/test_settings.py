"""What PyTorch refuses is refused, for the same reason; what it accepts is accepted, and means the same."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from vramscope_server.analysis.simulator.settings import UNLIMITED, AllocatorSettings, BadSetting
from vramscope_server.analysis.simulator.timed_settings import settings_in_force, words_of
from vramscope_server.analysis.simulator.versions import NEWEST, profile_of

MIB = 1 << 20

REFUSED = [
    ("max_split_size_mb:19", "max_split_size_mb"),
    ("max_split_size_mb", "max_split_size_mb"),
    ("large_segment_size_mb:10", "large_segment_size_mb"),
    ("max_split_size_mb:32,large_segment_size_mb:64", "max_split_size_mb"),
    ("garbage_collection_threshold:1", "garbage_collection_threshold"),
    ("garbage_collection_threshold:nan", "garbage_collection_threshold"),
    ("roundup_power2_divisions:3", "roundup_power2_divisions"),
    ("roundup_power2_divisions:[3:1]", "roundup_power2_divisions"),
    ("roundup_power2_divisions:[4:2", "roundup_power2_divisions"),
    ("expandable_segments:true", "expandable_segments"),
    ("max_split_size:128", "max_split_size"),
    ("per_process_memory_fraction:1.5", "per_process_memory_fraction"),
    ("pinned_num_register_threads:3", "pinned_num_register_threads"),
    ("backend:jemalloc", "backend"),
]
ACCEPTED = ["", "max_split_size_mb:20abc", " max_split_size_mb : 3 0 ", "max_split_size_mb,30", "max_split_size_mb:-1"]
ACCEPTED += [
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "max_split_size_mb:30,",
    "garbage_collection_threshold:0x1p-2",
]

# Runs in a process of its own: settings are the process's.
ASK = """
import json, sys, torch
told = []
for text in json.load(sys.stdin):
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20,expandable_segments:False")
    try:
        torch._C._accelerator_setAllocatorSettings(text)
        told.append(torch.cuda.memory._snapshot()["allocator_settings"])
    except Exception as error:
        told.append(str(error).split("\\n")[0])
print(json.dumps([torch.__version__, told]))
"""


def pytorch_says(texts: list[str]) -> tuple[str, list[Any]]:
    """Per text the settings in force, or the first line of the refusal."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    version, answer = json.loads(done.stdout)
    return version, answer


def random_text(luck: random.Random) -> str:
    """Settings as a hand in a hurry writes them."""
    words = ["max_split_size_mb", "large_segment_size_mb", "max_non_split_rounding_mb", "garbage_collection_threshold"]
    words += ["roundup_power2_divisions", "expandable_segments", "per_process_memory_fraction", "backend", "max_split"]
    words += ["throw_on_cudamalloc_oom", "pinned_use_cuda_host_register", "pinned_num_register_threads"]
    words += ["expandable_segments_reserve", "expandable_segments_reserve_by_class"]
    words += ["release_lock_on_cudamalloc", "pinned_use_background_threads", "pinned_max_cached_size_mb"]
    values = [
        "True",
        "False",
        "true",
        "20",
        "64",
        "11",
        "0.5",
        "1.5",
        "0",
        "4",
        "3",
        "native",
        "8x",
        "-1",
        "[4:2,>:8]",
        "[4:2",
    ]
    values += ["[3:3]", "[8:2,x:4]", "[16:4,4:0]", "[>:2]", "[4:2,]", "[,]", "[4]", ""]
    text = luck.choice([",", "", ""]) if luck.random() < 0.1 else ""
    for _ in range(luck.randrange(1, 4)):
        text += luck.choice(words) + luck.choice([":"] * 12 + [",", " : ", "="]) + luck.choice(values)
        text += luck.choice([","] * 12 + [", ", ":", ";", ""])
    return text if luck.random() < 0.5 else text.rstrip(",:; ")


@pytest.mark.gpu
def test_pytorch_and_we_accept_and_refuse_the_same(emulated_gpu: None):
    """Known texts and 1,500 random ones: the same words of refusal, and the same settings in force."""
    luck = random.Random(4)
    texts = [text for text, _ in REFUSED] + ACCEPTED + [random_text(luck) for _ in range(1500)]
    version, result = pytorch_says(texts)
    profile, _ = profile_of(version)
    refused = 0
    for text, theirs in zip(texts, result, strict=True):
        try:
            ours: Any = AllocatorSettings.parse(text, profile)
        except BadSetting as refusal:
            ours = refusal.reason
        if isinstance(theirs, str) or isinstance(ours, str):
            refused += 1
            assert isinstance(theirs, str) and isinstance(ours, str) and ours.strip() in theirs, (
                f"{text!r}: {theirs} | {ours}"
            )
            continue
        # a negative one is a number beyond all sizes, as unsigned numbers go
        assert theirs["max_split_size"] == ours.max_split_bytes or (
            theirs["max_split_size"] < 0 and ours.max_split_bytes == UNLIMITED
        ), text
        in_force = {
            "garbage_collection_threshold": ours.garbage_collection_threshold,
            "expandable_segments": ours.expandable_segments,
            "roundup_power2_divisions": {str(1 << slot): number for slot, number in enumerate(ours.divisions)},
        }
        assert in_force == {key: theirs[key] for key in in_force}, text
    assert refused > 300, "the random texts are too tame"


@pytest.mark.parametrize(("text", "key"), REFUSED)
def test_a_refusal_names_the_key(text: str, key: str):
    with pytest.raises(BadSetting) as refusal:
        AllocatorSettings.parse(text, NEWEST)
    assert refusal.value.key == key
    assert str(refusal.value).startswith(f"{key}: ")


def test_a_larger_segment_moves_what_is_measured_by_it():
    """The default of max_non_split_rounding_mb is the size of a segment."""
    settings = AllocatorSettings.parse("large_segment_size_mb:64", NEWEST)
    assert settings.max_non_split_rounding_bytes == settings.large_segment_bytes == 64 * MIB


@pytest.mark.parametrize(
    ("word", "gib"),
    [("1.5G", 1.5), ("2g", 2), ("0.25", 20), ("3", 90), ("-1", 90), ("G", 90), ("nothing", 90)],
)
def test_a_reserve_is_a_share_of_the_card_or_gib_and_never_more_than_the_default(word: str, gib: float):
    settings = AllocatorSettings.parse(f"expandable_segments_reserve:{word}")
    assert settings.reservation_bytes(80 << 30) == int(gib * (1 << 30))
    assert replace(AllocatorSettings.parse(words_of(replace(settings, expandable_segments=True))), text="") == replace(
        settings, expandable_segments=True, text=""
    )


def test_each_version_knows_its_own_keys():
    with pytest.raises(BadSetting, match="throw_on_cudamalloc_oom"):
        AllocatorSettings.parse("throw_on_cudamalloc_oom:True", profile_of("2.11.0")[0])
    assert AllocatorSettings.parse("throw_on_cudamalloc_oom:True", profile_of("2.12.1")[0]).throw_on_cudamalloc_oom


@pytest.mark.parametrize(
    ("version", "name", "is_noted"),
    [
        ("2.11.0+cu130", "2.11", False),
        ("2.12.0", "2.12", False),
        ("2.6.0+cu124", "2.11", True),
        ("2.14.1+cu130", "2.14", False),
        ("2.15.0+cu132", "2.15", False),
        ("3.0", "2.15", True),
        ("?", "2.15", True),
    ],
)
def test_an_unchecked_version_is_replayed_as_the_nearest_and_says_so(version: str, name: str, is_noted: bool):
    profile, note = profile_of(version)
    assert (profile.name, bool(note)) == (name, is_noted)


@pytest.mark.parametrize("text", [*ACCEPTED, "max_split_size_mb:64,per_process_memory_fraction:0.25"])
def test_settings_in_force_are_told_in_one_text_that_gives_them_again(text: str):
    settings = AllocatorSettings.parse(text)
    assert replace(AllocatorSettings.parse(words_of(settings)), text=text) == settings


@pytest.mark.parametrize(
    "reported",
    [
        {"max_split_size_mb": -5, "expandable_segments": 1, "garbage_collection_threshold": 7},
        {"max_split_size_mb": "much", "expandable_segments": "True", "garbage_collection_threshold": None},
        {"max_split_size_mb": float("nan"), "roundup_power2_divisions": 3},
        {"max_split_size_mb": 1 << 70, "roundup_power2_divisions": "[1:4"},
        {"roundup_power2_divisions": -4},
    ],
)
def test_what_no_allocator_has_is_not_believed(reported: dict[str, Any]):
    for seen in (None, 5 << 20, (20 << 20) + 1):
        assert settings_in_force("", reported, NEWEST, lambda _, seen=seen: seen) == AllocatorSettings()
