"""Run every benchmark and print one table: ``make bench``, or ``python -m benchmarks``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from rich.console import Console

from benchmarks.dashboard.section import measure_dashboard
from benchmarks.recording.disabled import measure_disabled
from benchmarks.recording.section import (
    measure_calls,
    measure_cpu,
    measure_imports,
    measure_kills,
    measure_memory_use,
    measure_sinks,
)
from benchmarks.report import Report
from benchmarks.spans.profiling_section import measure_profiling
from benchmarks.spans.section import measure_spans

__all__: list[str] = []


def _main() -> None:
    report = Report()
    sections: dict[str, Callable[[Report], None]] = {
        "calls": measure_calls,
        "disabled runs": measure_disabled,
        "spans": measure_spans,
        "profiling": measure_profiling,
        "CPU": measure_cpu,
        "sinks": measure_sinks,
        "memory": measure_memory_use,
        "kills": measure_kills,
        "imports": measure_imports,
        "the dashboard": measure_dashboard,
    }
    with tempfile.TemporaryDirectory(prefix="tachograph-bench-bytecode-") as bytecode:
        # Installed packages are compiled. Compiling during a measurement would count as import time and memory.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        with Console(stderr=True).status("") as status:
            for title, measure in sections.items():
                status.update(f"Measuring {title}; this takes several minutes and needs an otherwise idle machine …")
                measure(report)
    report.print(Console())


if __name__ == "__main__":
    _main()
