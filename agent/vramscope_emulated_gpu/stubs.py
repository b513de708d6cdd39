"""The C code of a function that nobody wrote by hand: it returns a fixed status, and zero where a result is read."""

from __future__ import annotations

import re

INT, SIZE = "int", "long"

# Solvers succeed and do nothing, but the sizes they ask for are read: which arguments (from 0) are set to zero.
RESULTS: list[tuple[str, dict[int, str]]] = [
    (r"cusolverDn[SDCZ]getrf_bufferSize", {5: INT}),
    (r"cusolverDn[SDCZ]geqrf_bufferSize", {5: INT}),
    (r"cusolverDn[SDCZ](or|un)gqr_bufferSize", {7: INT}),
    (r"cusolverDn[SDCZ](or|un)mqr_bufferSize", {11: INT}),
    (r"cusolverDn[SDCZ]potrf_bufferSize", {5: INT}),
    (r"cusolverDn[SDCZ](sy|he)evd_bufferSize", {7: INT}),
    (r"cusolverDn[SDCZ](sy|he)evj_bufferSize", {7: INT}),
    (r"cusolverDn[SDCZ](sy|he)evjBatched_bufferSize", {7: INT}),
    (r"cusolverDn[SDCZ]gesvdj_bufferSize", {12: INT}),
    (r"cusolverDn[SDCZ]gesvdjBatched_bufferSize", {11: INT}),
    (r"cusolverDn[SDCZ]gesvd_bufferSize", {3: INT}),
    (r"cusolverDn[SDCZ]gesvdaStridedBatched_bufferSize", {15: INT}),
    (r"cusolverDnXgeqrf_bufferSize", {10: SIZE, 11: SIZE}),
    (r"cusolverDnXpotrf_bufferSize", {8: SIZE, 9: SIZE}),
    (r"cusolverDnXsyevd_bufferSize", {11: SIZE, 12: SIZE}),
    (r"cusolverDnXsyevBatched_bufferSize", {11: SIZE, 12: SIZE}),
    (r"cusolverDnCreate(Gesvdj|Syevj)Info", {0: SIZE}),
]

# Other results that are read: "not supported" in place of garbage.
REFUSED = r"cusolver.*([bB]ufferSize|Create)"
CUSOLVER_NOT_SUPPORTED = 9


def stub_source(name: str, status: int) -> str:
    """One function. On x86-64 the caller clears the stack, so a stub may leave out the parameters that it ignores."""
    parameters, body = "void", f"return {status};"
    if re.match(REFUSED, name):
        body = f"return {CUSOLVER_NOT_SUPPORTED};"
    for pattern, results in RESULTS:
        if re.fullmatch(pattern, name):
            parameters = ", ".join(f"void *a{i}" for i in range(max(results) + 1))
            body = " ".join(f"*({kind} *)a{i} = 0;" for i, kind in results.items()) + " return 0;"
    return f'__attribute__((visibility("default"))) long {name}({parameters}) {{ {body} }}\n'
