"""The environment of a program: packages, interpreter, environment variables, seeds and determinism."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from tachograph._base.guard import suppress
from tachograph._base.typed import decode_json
from tachograph.records import mask_text

__all__ = ["determinism", "environment", "interpreter", "requirements", "torch_build"]

_VARIABLES = re.compile(
    r"(?:CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_ORDER|CUBLAS_WORKSPACE_CONFIG|HIP_VISIBLE_DEVICES"
    r"|RANK|LOCAL_RANK|NODE_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NCCL_\w+|GLOO_\w+|TORCH_\w+|TORCHINDUCTOR_\w+"
    r"|PYTORCH_\w+|OMP_\w+|MKL_NUM_THREADS|PYTHONHASHSEED|TOKENIZERS_PARALLELISM|XLA_FLAGS|NVIDIA_TF32_OVERRIDE"
    r"|SLURM_JOB_\w+)"
)
"""The environment variables that are recorded; all others may hold secrets."""
_MAX_VALUE_CHARS = 500


def environment() -> dict[str, str]:
    """Return the environment variables that affect a training and are known to hold no secrets."""
    variables = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    return {name: value[:_MAX_VALUE_CHARS] for name, value in sorted(variables.items())}


def interpreter() -> dict[str, Any]:
    """Return the interpreter and the platform."""
    return {
        "implementation": platform.python_implementation(),
        "version": sys.version,
        "executable": sys.executable,
        "prefix": sys.prefix,
        "machine": platform.machine(),
    }


def torch_build() -> dict[str, Any]:
    """Return the build of torch, if it is loaded."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    if torch is None or version is None:
        return {}
    build: dict[str, Any] = {"version": getattr(torch, "__version__", None)}
    for name in ("cuda", "hip", "git_version"):
        build[name] = getattr(version, name, None)
    with suppress(Exception):  # a build without it
        build["cudnn"] = torch.backends.cudnn.version() if build["cuda"] else None
    return {name: str(value) for name, value in build.items() if value is not None}


def determinism() -> dict[str, Any]:
    """Return seeds and switches of the libraries that are loaded. The state of numpy does not tell its seed."""
    values: dict[str, Any] = {"hash_seed": os.environ.get("PYTHONHASHSEED")}
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_float32_matmul_precision"):  # imported completely, and not a stand-in
        readings: dict[str, Callable[[], Any]] = {
            "torch_seed": torch.initial_seed,
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
            "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
            "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
            "float32_matmul_precision": torch.get_float32_matmul_precision,
        }
        for name, read_value in readings.items():
            with suppress(Exception):  # not imported completely
                values[name] = read_value()
    return {name: value for name, value in values.items() if isinstance(value, (str, int, bool))}


def requirements(max_s: float) -> tuple[list[str], bool]:
    """Return the installed packages as lines of a requirements file, and whether these are all.

    A package that was installed from a repository or a file has its address and commit, secrets masked.
    """
    from importlib.metadata import distributions

    deadline_s = time.monotonic() + max_s
    lines: dict[str, str] = {}
    for package in distributions():
        if time.monotonic() > deadline_s:
            return sorted(lines.values(), key=str.lower), False
        with suppress(Exception):  # a damaged package
            name, version = package.metadata["Name"], package.version
            if name and name.lower() not in lines:
                origin = package.read_text("direct_url.json")
                lines[name.lower()] = _requirement(name, version, decode_json(origin, dict[str, Any]) if origin else {})
    return sorted(lines.values(), key=str.lower), True


def _requirement(name: str, version: str, origin: dict[str, Any]) -> str:
    address = mask_text(str(origin.get("url") or ""))
    vcs = origin.get("vcs_info") or {}
    if vcs.get("commit_id"):
        line = f"{name} @ {vcs.get('vcs', 'git')}+{address}@{vcs['commit_id']}"
    elif address and (origin.get("dir_info") or {}).get("editable"):
        line = f"# editable: {name}=={version} at {address}"
    elif address:
        line = f"{name} @ {address}"
    else:
        line = f"{name}=={version}"
    return " ".join(line.split())
