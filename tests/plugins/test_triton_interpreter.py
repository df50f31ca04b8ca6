"""Triton kernels run on the processor, in another process than the tests."""

from __future__ import annotations

import os
import sys

import pytest

pytest.importorskip("triton")
pytest.importorskip("liger_kernel")

from tests.plugins.triton_interpreter import run_cases


def test_kernels_run_without_a_gpu_in_a_child_process():
    results = run_cases("tests.plugins.interpreter_cases")
    assert results["scaled_row"]["difference"] < 1e-5
    assert results["scaled_row"]["padding"] == [-1.0] * 3
    assert max(results["liger_norm"]) < 1e-5
    with pytest.raises(AssertionError, match=r"(?s)case that_fails failed.*ValueError: the message of the error"):
        results["that_fails"]
    assert "TRITON_INTERPRET" not in os.environ
    assert "tests.plugins.interpreter_cases" not in sys.modules
