"""Which symbols torch asks of which CUDA library: read from the libraries of an installed torch with pyelftools."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile


@dataclass(frozen=True)
class Wanted:
    """What torch asks of one library."""

    soname: str
    version: str | None  # the ELF version node of its symbols, where it has one
    symbols: frozenset[str]


# Libraries that torch opens by name at run time, if at all: no DT_NEEDED tells their sonames.
OPENED_BY_NAME = {"cuda": "libcuda.so.1", "nvidia-ml": "libnvidia-ml.so.1"}

# Symbols without an ELF version tell their library by their prefix; the first that fits.
PREFIXES = [
    (r"cuFile", "cufile"),
    (r"cu[A-Z]", "cuda"),
    (r"(__)?cuda[A-Z]", "cudart"),
    (r"nvml", "nvidia-ml"),
    (r"cublasLt", "cublasLt"),
    (r"cublas", "cublas"),
    (r"cudnn", "cudnn"),
    (r"cufft", "cufft"),
    (r"curand", "curand"),
    (r"cusparseLt", "cusparseLt"),
    (r"cusparse", "cusparse"),
    (r"cusolver", "cusolver"),
    (r"p?nccl", "nccl"),
    (r"cupti", "cupti"),
    (r"nvrtc", "nvrtc"),
    (r"nvshmem", "nvshmem_host"),
]


def wanted_symbols(torch_package: Path, libraries: set[str]) -> dict[str, Wanted]:
    """What each of ``libraries`` must offer, by its name without ``lib`` and ``.so``."""
    sonames = dict(OPENED_BY_NAME)
    symbols: dict[str, set[str]] = defaultdict(set)
    versions: dict[str, set[str]] = defaultdict(set)
    for path in sorted(torch_package.glob("lib/*.so*")):
        with path.open("rb") as file:
            elf = ELFFile(file)
            for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED"):
                if library_name(tag.needed) in libraries:
                    sonames[library_name(tag.needed)] = tag.needed
            for symbol, soname, version in undefined_symbols(elf):
                library = library_name(soname) if soname else library_by_prefix(symbol)
                if library in libraries:
                    symbols[library].add(symbol)
                    if version is not None:
                        versions[library].add(version)
    symbols["cuda"] |= driver_functions_by_name(torch_package) | driver_functions_of_triton(torch_package.parent)

    for name, found in versions.items():
        if len(found) > 1:
            raise ValueError(f"{sonames[name]}: torch asks for several version nodes, {sorted(found)}")
    return {
        name: Wanted(soname, next(iter(versions[name]), None), frozenset(symbols[name]))
        for name, soname in sonames.items()
    }


def library_name(soname: str) -> str:
    found = re.match(r"lib(.+?)\.so", soname)
    return found.group(1) if found else soname


def library_by_prefix(symbol: str) -> str | None:
    return next((library for prefix, library in PREFIXES if re.match(prefix, symbol)), None)


def undefined_symbols(elf: ELFFile) -> Iterator[tuple[str, str | None, str | None]]:
    """Each undefined symbol with the soname and the version that it is bound to, or None and None."""
    needed = elf.get_section_by_name(".gnu.version_r")
    bindings = {
        auxiliary["vna_other"]: (library.name, auxiliary.name)
        for library, auxiliaries in (needed.iter_versions() if needed else ())
        for auxiliary in auxiliaries
    }
    indices = elf.get_section_by_name(".gnu.version")
    for i, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name:
            index = indices.get_symbol(i)["ndx"] if indices else None
            yield symbol.name, *bindings.get(index, (None, None))


def driver_functions_by_name(torch_package: Path) -> set[str]:
    """Driver functions that the allocator looks up by name: they stand in its library as strings."""
    text = (torch_package / "lib/libc10_cuda.so").read_bytes()
    names = {n.decode() for n in re.findall(rb"\x00(cu[A-Z][A-Za-z0-9]{4,}(?:_v[0-9])?)(?=\x00)", text)}
    return {n for n in names if library_by_prefix(n) == "cuda"}


def driver_functions_of_triton(packages: Path) -> set[str]:
    """Return the driver functions that Triton's C code is linked with. It is compiled at its first kernel, and fails without one.

    Pointers to functions, which it looks up by name and may miss, are left out. Triton may be installed later than this is built:
    what it calls is then among the functions of the emulated driver and of PyTorch, as ``tests/emulated_gpu`` checks.
    """
    source = packages / "triton/backends/nvidia/driver.c"
    text = source.read_text(errors="replace") if source.exists() else ""
    pointers = set(re.findall(r"\bstatic \w+_t (cu[A-Z]\w+) = NULL", text))
    return {n for n in re.findall(r"\bcu[A-Z]\w+(?=\()", text) if library_by_prefix(n) == "cuda"} - pointers


def defined_symbols(path: Path) -> set[str]:
    """The global symbols that an object file defines."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        return {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
        }
