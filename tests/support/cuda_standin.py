"""The stand-ins of CUDA's libraries and NCCL: compiled, given a scenario, and put where programs look for them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from support.built_programs import SETUP, build_once, run_build

SOURCE = Path(__file__).resolve().parents[1] / "cuda_standin"
RUNTIME, DRIVER, NCCL = "libcudart.so.13", "libcuda.so.1", "libnccl.so.2"
LOOP = "libloop.so"
CUBLAS, CUBLAS_LT = "libcublas.so.13", "libcublasLt.so.13"
FOREVER_S = -1.0
# Library -> source, and what it is linked with. Without optimisation: every function begins with a push.
BUILDS = {
    DRIVER: ("libcuda.c",),
    RUNTIME: ("libcudart.c", f"-l:{DRIVER}"),
    CUBLAS_LT: ("libcublas.c", "-DLT", f"-l:{DRIVER}"),
    CUBLAS: ("libcublas.c", f"-l:{CUBLAS_LT}", f"-l:{DRIVER}"),
    NCCL: ("libnccl.c", f"-l:{DRIVER}"),
    LOOP: ("loop.c",),
}


def has_compiler() -> bool:
    """Return whether they can be built here."""
    return shutil.which("cc") is not None


def build_standins() -> Path:
    """Return the folder of the libraries, built."""

    def build(folder: Path) -> None:
        for name, (source, *more) in BUILDS.items():
            flags = ["-O0", "-g0", "-fPIC", "-shared", f"-Wl,-soname,{name}"]
            place = ["-L.", "-Wl,-rpath,$ORIGIN"]
            command = ["cc", *flags, source, "-o", name, *place, *more, "-lpthread"]
            run_build(*command, cwd=folder)

    return build_once(SOURCE, SETUP / "cuda-standin", build)


def write_scenario(
    path: Path, seconds_by_key: dict[str, float], at_s: float = 0.0
) -> dict[str, str]:
    """Write what the stand-ins play from now on; return the environment in which they do.

    Args:
        path: The file.
        seconds_by_key: As `scenario.h` has it: time of a function's call, or of what the device does.
        at_s: When it begins, s from now.
    """
    lines = [f"start {time.monotonic_ns()}"]
    lines += [f"{at_s} {key} {seconds}" for key, seconds in seconds_by_key.items()]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    folders = [str(build_standins()), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder),
        "ROOTWALK_CUDA_SCENARIO": str(path),
    }
