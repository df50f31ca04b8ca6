"""Runs the rules while a run is being recorded. Called by the writer thread only, never by the training loop."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tachograph._base.guard import guard
from tachograph.black_box import BlackBox
from tachograph.diagnostics import RuleEngine, RuleSettings, SignalNames
from tachograph.recorder._hang_stacks import dump_stacks
from tachograph.recorder._rank_monitor import RankReport
from tachograph.records import Encodable, RankMap, StepTable

__all__ = ["LiveDiagnostics"]

_MAX_LINES = 20
_MAX_DUMPS = 10
_OPERATION = "diagnosing the run"


class LiveDiagnostics:
    """Feeds everything that is about to be written to the rule engine, and adds the alerts to it.

    If a rule raises, diagnosis stops for the rest of the run and recording continues: the rule would raise again at
    every step.
    """

    def __init__(
        self,
        rules: Mapping[str, RuleSettings],
        print_line: Callable[[str], None],
        signals: SignalNames | None = None,
        black_box: BlackBox | None = None,
    ) -> None:
        """Create the rules.

        Args:
            rules: thresholds by rule, as `resolve_rules` returns them.
            print_line: prints a line to the console of the run.
            signals: the metric names of the signals, as `resolve_signals` returns them.
            black_box: captures evidence about the alerts.
        """
        self._print_line = print_line
        self._black_box = black_box
        self._num_lines = 0
        self._num_dumps = 0
        self.fault = ""
        """Why diagnosis stopped; empty while it is running."""
        self._engine: RuleEngine | None = None
        with guard(_OPERATION, self._stop):  # the rule of another package may raise
            self._engine = RuleEngine(rules, signals=signals, prefix=f"{os.urandom(3).hex()}-")

    def observe(self, records: list[Encodable], folder: Path) -> list[Encodable]:
        """Return the records with the alerts they cause, each alert after its cause."""
        result: list[Encodable] = []
        for record in records:
            result.append(record)
            engine = self._engine
            if engine is None:
                continue
            if isinstance(record, StepTable):
                result += self._run_rules(folder, engine.observe_steps, record.names, record.columns)
            else:
                result += self._run_rules(folder, engine.observe, record)
        return result

    def tick(self, time_s: float, folder: Path) -> list[Encodable]:
        """Let rules handle the passing of time; return their alerts."""
        return self._run_rules(folder, self._engine.tick, time_s) if self._engine is not None else []

    def observe_ranks(self, report: RankReport, world_size: int, time_s: float, folder: Path) -> list[Encodable]:
        """Feed the rules what other ranks recorded and what all ranks are doing; return the alerts."""
        if self._engine is None:
            return []
        alerts: list[Encodable] = []
        for rank, record in report.records:
            alerts += self._run_rules(folder, self._engine.observe_rank, rank, record)
        return alerts + self._run_rules(folder, self._engine.observe_statuses, report.statuses, world_size, time_s)

    def keep_rank_map(self, earlier: RankMap | None) -> None:
        """Keep a map of all ranks over the run from now on, which continues that of an earlier attempt."""
        if self._engine is not None:
            self._engine.keep_rank_map(earlier)

    def build_rank_map(self) -> RankMap | None:
        """Return the map of all ranks; None if ranks were not compared so far."""
        return self._engine.build_rank_map() if self._engine is not None else None

    def on_progress(self) -> None:
        """Note that the training code logged something, although it may still wait in a window of steps."""
        if self._engine is not None:
            self._engine.on_progress()

    @property
    def num_open(self) -> tuple[int, int]:
        """Number of open alerts, and how many of them are critical."""
        return self._engine.num_open if self._engine is not None else (0, 0)

    @property
    def open_alerts(self) -> list[dict[str, Any]]:
        """The open alerts: id, rule, severity and title."""
        return self._engine.open_alerts if self._engine is not None else []

    def _run_rules(self, folder: Path, method: Callable[..., list[dict[str, Any]]], *arguments: Any) -> list[Encodable]:
        with guard(_OPERATION, self._stop):
            alerts = method(*arguments)
            for alert in alerts:
                if alert["status"] == "opened":
                    self._announce(alert, folder)
                elif alert.get("cause"):
                    self._print(f"cause ({alert['cause'].get('confidence')}): {alert['cause']['text']}")
            return [*alerts]
        return []

    def _stop(self, _operation: str, fault: Exception) -> None:
        self._engine = None
        self.fault = f"{type(fault).__name__}: {fault}{_location(fault)}"

    def _announce(self, alert: dict[str, Any], folder: Path) -> None:
        if alert["rule"] == "hang" and self._num_dumps < _MAX_DUMPS:
            self._num_dumps += 1
            path = folder / f"stacks-{time.strftime('%Y%m%d-%H%M%S')}.txt"
            name = dump_stacks(path, folder)
            if name is not None:
                alert["evidence"] = {**alert.get("evidence", {}), "stacks": name}
        if alert["severity"] != "info" or alert["rule"] == "no_training_loss":
            self._print(f"{alert['severity']}: {alert['title']} (tacho doctor --explain {alert['rule']})")
        if self._black_box is not None:
            self._black_box.on_alert(alert)

    def _print(self, line: str) -> None:
        if self._num_lines < _MAX_LINES:
            self._num_lines += 1
            self._print_line(line)


def _location(fault: Exception) -> str:
    """Return where a fault was raised, which tells which rule is to blame."""
    frames = traceback.extract_tb(fault.__traceback__)
    return f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name}, in {frames[-1].name})" if frames else ""
