"""How the launcher and the processes it starts communicate.

The launcher passes its options down in the environment variable `TACHO_LAUNCH`, which every process of the program
inherits. Processes report back through small JSON files in a temporary folder named in that variable:
`<kind>-<pid>.json`. The folder exists only while the program runs. The kinds are

- `run`: this process started a run, with its folder;
- `rank`: this process belongs to a job whose rank 0 records elsewhere;
- `error`: an exception was not handled;
- `values`: config and metrics that the script gave to other tools, from a process that ended without a run;
- `fault`: this process cannot be recorded (written by `sitecustomize.py`, which cannot import this module then).
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, NamedTuple

__all__ = ["ChildReport", "LaunchSpec", "read_child_reports", "report_to_launcher"]

_VARIABLE = "TACHO_LAUNCH"


class LaunchSpec(NamedTuple):
    """The options of a launch, for the processes of the program."""

    reports: str
    """The folder for reports to the launcher."""
    name: str | None = None
    """The name of the run, if the user chose one."""
    default_name: str | None = None
    resume: bool = False
    tags: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    """Modules that are replaced by our own of the same name, such as `wandb` by `tachograph.wandb`."""
    reads_output: bool = True
    """Whether to read metrics from the output."""

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables that carry it."""
        return {_VARIABLE: json.dumps(self._asdict())}

    @classmethod
    def from_environment(cls) -> LaunchSpec | None:
        """Return the options this process was launched with, or None if `tacho run` did not launch it."""
        try:
            fields = json.loads(os.environ.get(_VARIABLE, ""))
            lists = {name: tuple(fields.get(name, ())) for name in ("tags", "stand_ins")}
            return cls(**{**fields, **lists})
        except (ValueError, TypeError, AttributeError):
            return None


class ChildReport(NamedTuple):
    """A report of one process."""

    pid: int
    fields: dict[str, Any]


def report_to_launcher(spec: LaunchSpec, kind: str, fields: dict[str, Any]) -> None:
    """Write a report. A later one of the same kind and process replaces it."""
    if os.path.isdir(spec.reports):  # a process may outlive the launcher, which removes the folder
        # Not with `_base.files`: the folder is private, and after Ctrl-C nothing may be imported (see `_child`).
        path = os.path.join(spec.reports, f"{kind}-{os.getpid()}.json")
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(fields, file)
        os.replace(f"{path}.tmp", path)


def read_child_reports(folder: str, kind: str) -> list[ChildReport]:
    """Return the reports of a kind, the oldest first."""
    reports_by_time: list[tuple[int, ChildReport]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            entry_kind, _, pid = entry.name.removesuffix(".json").rpartition("-")
            if entry_kind == kind and entry.name.endswith(".json"):
                with contextlib.suppress(OSError, ValueError), open(entry.path, encoding="utf-8") as file:
                    reports_by_time.append((entry.stat().st_mtime_ns, ChildReport(int(pid), json.load(file))))
    return [report for _, report in sorted(reports_by_time, key=lambda pair: pair[0])]
