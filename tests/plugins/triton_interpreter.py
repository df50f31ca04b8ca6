"""Runs Triton kernels on the processor, in a process of their own, for tests of kernels without a GPU.

Triton's interpreter executes a kernel in Python if ``TRITON_INTERPRET`` is set while Triton and the kernel are
imported, so it cannot be turned on for a single test. `run_cases` starts one process for all cases of a module:

.. code-block:: python

    # tests/plugins/my_cases.py: imported with the interpreter on, so kernels are imported as usual
    from my_package import my_kernel


    def case_sum_of_a_row():
        return {"difference": ...}  # anything that JSON can express


    # tests/plugins/test_my_kernels.py
    @pytest.fixture(scope="module")
    def results():
        return run_cases("tests.plugins.my_cases")


    def test_sum_of_a_row(results):
        assert results["sum_of_a_row"]["difference"] < 1e-6

The process is a fork of the one that has imported the frameworks, so it need not import them again. The interpreter
computes in fp32 and fp16; bfloat16 kernels are tested on a GPU.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class CaseResults(dict[str, Any]):
    """The results of the cases by name. Getting the result of a case that failed raises its error."""

    def __getitem__(self, name: str) -> Any:
        outcome = super().__getitem__(name)
        assert "error" not in outcome, f"case {name} failed:\n{outcome['error']}"
        return outcome["result"]


def run_cases(module: str, *names: str, timeout_s: float = 800.0) -> CaseResults:
    """Run the functions ``case_<name>`` of a module with Triton's interpreter; all of them if no name is given."""
    from tests.preloaded import preloaded

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "results.json"
        process = preloaded("frameworks").popen(
            [sys.executable, "-m", "tests.plugins.triton_interpreter", module, str(report), *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        assert process.returncode == 0 and report.exists(), f"exit code {process.returncode}\n{output}"
        return CaseResults(json.loads(report.read_text(encoding="utf-8")))


def use_interpreter() -> None:
    """Make this process interpret the kernels that it imports from now on; the process cannot turn it off again."""
    assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 in the environment of the process"
    # torch has imported Triton, without the interpreter if this process is a fork. Only the part in C may stay.
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        if not name.startswith("triton._C"):
            del sys.modules[name]
    _convert_floats()
    _replace_device_functions()


def _convert_floats() -> None:
    """Pass a Python float to a kernel as a tensor, as compiled kernels do; Triton leaves it a float."""
    import numpy
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def convert_floats_too(value: Any) -> Any:
        if isinstance(value, float):
            handle = interpreter.TensorHandle(numpy.array([value], dtype=numpy.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return convert(value)

    interpreter._implicit_cvt = convert_floats_too


def _replace_device_functions() -> None:
    """Define the functions of NVIDIA's libdevice that kernels use; interpreted, they would return nothing."""
    import triton.language as tl
    from triton.language.extra import libdevice

    libdevice.rsqrt = lambda x: 1.0 / tl.sqrt(x)
    libdevice.tanh = lambda x: 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    libdevice.log1p = lambda x: tl.log(1.0 + x)


def _main(module_name: str, report: str, *names: str) -> None:
    import torch

    torch.set_num_threads(1)
    use_interpreter()
    module = importlib.import_module(module_name)
    cases = {name[len("case_") :]: case for name, case in vars(module).items() if name.startswith("case_")}
    outcomes: dict[str, dict[str, Any]] = {}
    for name in names or cases:
        torch.manual_seed(0)
        start_s = time.process_time()
        try:
            outcomes[name] = {"result": cases[name]()}
        except Exception:
            outcomes[name] = {"error": traceback.format_exc()}
        outcomes[name]["cpu_s"] = round(time.process_time() - start_s, 1)
    Path(report).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
