"""Put an emulated GPU under the PyTorch of the Python that runs this module, for tests on a machine without a GPU.

    PYTHONPATH=agent python -m vramscope_emulated_gpu.install_into_python [--cuda-include DIR|pip]

Needs an installed CUDA 13 build of torch; its nvidia-* packages are not wanted. The libraries go where torch's own RPATH
looks for them: ``site-packages/nvidia/cu13/lib``.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from pathlib import Path

from vramscope_emulated_gpu import cuda_headers, registration
from vramscope_emulated_gpu.build import BuildError, build


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cuda-include",
        default=os.environ.get("CUDA_INCLUDE", ""),
        help="folder of CUDA 13's headers; 'pip': two packages of the index; default: /usr/local/cuda*, else pip",
    )
    arguments = parser.parse_args()
    site = Path(sysconfig.get_path("purelib"))
    try:
        include = cuda_headers.find(arguments.cuda_include, site, 13)
        libraries = build(site / "torch", include, site / "nvidia" / "cu13" / "lib")
    except BuildError as fault:
        raise SystemExit(str(fault)) from None
    registration.register(site, libraries)


if __name__ == "__main__":
    main()
