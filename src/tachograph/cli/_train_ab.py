"""`tacho train --ab`: train with and without a plugin in turns, and write one page about the difference."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tachograph._base import ranks
from tachograph.cli._ab import print_progress, tag_run
from tachograph.cli._compare import print_report
from tachograph.cli._files import write_file
from tachograph.cli._format import duration, json_text, new_console, safe
from tachograph.cli._terminal import echo
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.records import check_run_name

if TYPE_CHECKING:
    from tachograph.comparison import ArmRun, ComparisonReport, MetricVerdict, RunEvidence
    from tachograph.train import ArmProbe, CheckedArms, TrainArm

__all__ = ["PluginTest"]

_ARM_NAMES = ("without", "with")


class PluginTest:
    """Trains with and without a plugin.

    Args:
        config: the file of the config.
        overrides: changes of the config.
        without: plugins that both arms leave out.
        plugin: the plugin to compare with and without.
        num_pairs: how often to train each arm.
        name: the name of the test; by default, from the plugin and the time.
    """

    def __init__(
        self,
        config: str,
        overrides: Sequence[str],
        without: Sequence[str],
        plugin: str,
        *,
        num_pairs: int,
        name: str | None,
    ) -> None:
        from tachograph.train import TrainArm

        if ranks.world_size() > 1:
            raise ConfigError(
                "--ab trains in one process: start it without torchrun, or compare two commands with tacho ab --arms "
                f"'A=torchrun … train {config} --without {plugin}' 'B=torchrun … train {config}'"
            )
        if plugin in without:
            raise ConfigError(f"--ab and --without both name the plugin {plugin!r}: remove one of them")
        self._arm = TrainArm(config, tuple(overrides), tuple(without))
        self._plugin = plugin
        self._num_pairs = num_pairs
        self._name = name or time.strftime(f"{plugin.rpartition('.')[2]}-%Y%m%d-%H%M%S")
        for arm_name in _ARM_NAMES:
            check_run_name(self._run_name(arm_name, num_pairs))
        self._pairs: list[tuple[ArmRun, ArmRun]] = []
        self._probe: ArmProbe | None = None
        self._checked_arms: CheckedArms | None = None

    def check(self) -> str:
        """Check both arms without training; return the plan."""
        from tachograph.train import call_in_process, check_arms

        with tempfile.TemporaryDirectory() as folder:
            self._checked_arms = call_in_process(Path(folder, "log"), check_arms, self._arm, self._plugin)
        return (
            f"would train {2 * self._num_pairs} times, {self._checked_arms.num_steps:,} steps each: "
            f"without {self._checked_arms.plugin}, with, with, without, …; then some steps of both at equal weights"
        )

    def run(self) -> bool:
        """Train all pairs; return whether it was stopped early."""
        print_progress("[train] checking the config and the data, with and without the plugin")
        self.check()
        assert self._checked_arms is not None  # noqa: S101 - set by `check`
        output_dir = Path(os.path.abspath(os.path.expanduser(self._checked_arms.output_dir)))
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{output_dir.name}.ab-", dir=output_dir.parent))
        try:
            self._train_pairs(folder)
            self._measure_at_equal_weights(folder)
        except KeyboardInterrupt:
            print_progress(f"stopped after {len(self._pairs)} complete pairs")
            return True
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return False

    def _arms(self) -> tuple[TrainArm, TrainArm]:
        assert self._checked_arms is not None  # noqa: S101 - set by `check`
        without = (*self._arm.without, self._checked_arms.plugin)
        return self._arm._replace(without=without), self._arm

    def _train_pairs(self, folder: Path) -> None:
        number = 0
        for pair in range(self._num_pairs):
            runs_by_side: dict[int, ArmRun] = {}
            for side in (0, 1) if pair % 2 == 0 else (1, 0):
                number += 1
                print_progress(f"[{number}/{2 * self._num_pairs}] {_ARM_NAMES[side]} {self._plugin}")
                runs_by_side[side] = self._train_once(side, pair + 1, folder)
            self._pairs.append((runs_by_side[0], runs_by_side[1]))

    def _train_once(self, side: int, pair: int, folder: Path) -> ArmRun:
        from tachograph.comparison import ArmRun, load_folder
        from tachograph.train import call_in_process, train_arm

        output_dir = folder / f"{_ARM_NAMES[side]}-{pair}"
        arm = self._arms()[side].set(
            f"name={json.dumps(self._run_name(_ARM_NAMES[side], pair))}",
            f"output_dir={json.dumps(str(output_dir))}",
            f"telemetry.group={json.dumps(self._name)}",
            "hub_strategy=null",  # nothing is uploaded
        )
        outcome = call_in_process(folder / "log", train_arm, arm)
        shutil.rmtree(output_dir, ignore_errors=True)
        tag_run(outcome.run_dir, ["ab", f"arm-{_ARM_NAMES[side]}"])
        run_path = Path(outcome.run_dir)
        evidence = replace(load_folder(RunFolder(run_path), prefers_step_times=True), name=run_path.name)
        steps = f", {evidence.num_steps:,} steps" if evidence.num_steps else ""
        print_progress(f"    {duration(outcome.duration_s)}{steps}: {os.path.relpath(run_path)}")
        return ArmRun(evidence, outcome.duration_s, outcome.peak_bytes)

    def _measure_at_equal_weights(self, folder: Path) -> None:
        from tachograph.train import call_in_process, probe_arm

        print_progress("loss and gradients at equal weights")
        for side in (0, 1):
            output_dir = folder / f"probe-{side}"
            arm = self._arms()[side].set(f"output_dir={json.dumps(str(output_dir))}", "hub_strategy=null")
            is_reference = side == 0
            self._probe = call_in_process(folder / "log", probe_arm, arm, str(folder), is_reference=is_reference)

    def report(self) -> tuple[ComparisonReport, tuple[list[RunEvidence], list[RunEvidence]]]:
        """Compare the complete pairs."""
        from tachograph.comparison import ArmCommand, add_equal_weights, judge_equal_weights, report_pairs

        if not self._pairs:
            print_progress("no pair of trainings is complete: there is nothing to compare")
            raise SystemExit(128 + signal.SIGINT)
        first, second = (ArmCommand(name, _command(arm)) for name, arm in zip(("off", "on"), self._arms(), strict=True))
        report = report_pairs(self._pairs, (first, second), is_repeated=True)
        report.headline = f"{self._plugin} {report.headline}"
        metrics: list[MetricVerdict] = []
        notes: list[str] = []
        if self._probe is not None:
            metrics = [judge_equal_weights(level, self._probe.precision) for level in _levels(self._probe)]
            notes = [
                "same weights: the initial ones; later weights: those of the arm without the plugin after some steps, "
                "loaded into both. Gradients are what the optimizer receives, without clipping; their difference is "
                "relative to the largest gradient of a parameter. The range is over batches",
                *self._probe.notes,
            ]
        report = add_equal_weights(report, metrics, notes) if metrics else report
        sides = [[pair[side].evidence for pair in self._pairs] for side in (0, 1)]
        return report, (sides[0], sides[1])

    def print(self, *, as_json: bool, html_file: str | None) -> None:
        """Write the page, and print the report."""
        from tachograph.comparison import html_report

        report, groups = self.report()
        assert self._checked_arms is not None  # noqa: S101 - set by `check`
        path = html_file or os.path.join(self._checked_arms.log_dir, f"{self._name}.html")
        write_file(path, html_report([report], [groups]))
        if as_json:
            echo(json_text(msgspec.to_builtins(report)))
        else:
            print_report(new_console(), report)
        print_progress(f"page: {safe(os.path.relpath(path))}")

    def _run_name(self, arm_name: str, pair: int) -> str:
        return f"{self._name}-{arm_name}-{pair}"


def _command(arm: TrainArm) -> str:
    options: list[Any] = [part for override in arm.overrides for part in ("--set", override)]
    options += [part for name in arm.without for part in ("--without", name)]
    return shlex.join(["tacho", "train", arm.config, *options])


def _levels(probe: ArmProbe) -> list[Any]:
    """Return the measurements at the initial weights, and at the weights after some steps."""
    from tachograph.comparison import EqualWeightsLevel

    levels = []
    for is_start, when in ((True, "same"), (False, "later")):
        steps = [step for step in probe.differences if step.is_start is is_start]
        if not steps:
            continue
        suffix = "start" if is_start else "later"
        levels.append(
            EqualWeightsLevel(f"loss_{suffix}", f"loss, {when} weights", steps[0].losses, [s.loss for s in steps])
        )
        worst = max(steps, key=lambda step: -1.0 if step.gradient is None else step.gradient)
        notes = [f"largest in {worst.worst}"] if worst.gradient else []
        levels.append(
            EqualWeightsLevel(
                f"gradient_{suffix}",
                f"grad., {when} weights",
                steps[0].norms,
                [step.gradient for step in steps],
                is_gradient=True,
                notes=notes,
            )
        )
    return levels
