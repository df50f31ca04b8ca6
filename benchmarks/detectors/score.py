"""Detection quality of the rules on labelled logs of real runs: `make bench-detectors`.

The rules observe every run once, record by record, as they would while it is being recorded. Published rules run on the
same losses for comparison. *Weak* labels come from an offline rule; labels *by eye* come from a person.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

from benchmarks.detectors.cost import cost_us
from benchmarks.detectors.data import Label, Logs, Record, Run, folder, half_of, load, load_small_models
from benchmarks.detectors.faults import Base, print_faults, real_bases
from benchmarks.detectors.healthy import print_healthy
from benchmarks.detectors.judge import judge

Steps = list[int]
_WEAK_SPIKES = frozenset({"weak", "cross_run_coincident_batch"})
_TOLERANCE = 2
"""Number of points by which an alert may miss the labelled stretch."""


def spikes_of(alerts: list[Record]) -> Steps:
    """Return the step at which each reported spike began."""
    spikes = [alert["occurrence"] for alert in alerts if alert["rule"] == "loss_spike" and "occurrence" in alert]
    return sorted({spike["step"] for spike in spikes})


def sigma_rule(losses: list[tuple[int, float]], num_before: int = 128, sigmas: float = 6.0) -> Steps:
    """Return the steps whose loss exceeds the mean of the previous values by `sigmas` standard deviations."""
    finite = [(step, loss) for step, loss in losses if math.isfinite(loss)]
    if len(finite) <= num_before:
        return []
    values = np.array([loss for _, loss in finite])
    windows = np.lib.stride_tricks.sliding_window_view(values[:-1], num_before)
    is_above = values[num_before:] > windows.mean(axis=1) + sigmas * windows.std(axis=1)
    return [finite[num_before + int(index)][0] for index in np.flatnonzero(is_above)]


class Targets:
    """Prints the targets that were missed."""

    def __init__(self) -> None:
        self.are_met = True

    def require(self, target: str, is_met: bool) -> None:
        if not is_met:
            print(f"  MISSED: {target}")
            self.are_met = False


class Score:
    """Compares alerts with labels, and prints the result."""

    def __init__(self, logs: Logs, targets: Targets) -> None:
        self.logs = logs
        self._require = targets.require
        self.alerts = {run: judge(records) for run, records in logs.runs.items()}
        self._losses = {
            run: [(record["global_step"], record["loss"]) for record in records if "loss" in record]
            for run, records in logs.runs.items()
        }
        self._loss_steps = {run: [step for step, _ in losses] for run, losses in self._losses.items()}
        labelled = {label.run for label in logs.labels}
        long = [run for run in logs.runs if run[0] == "algoperf" and len(self._losses[run]) >= 200]
        self.clean = [run for run in long if run not in labelled and run not in logs.bimodal]
        self.bimodal = [run for run in long if run in logs.bimodal]

    def print(self, *, has_comparators: bool = True) -> None:
        """Print all figures.

        Args:
            has_comparators: whether to run published rules on the same losses, for which there are no targets.
        """
        print(f"{len(self.logs.runs)} runs: {len(self.clean)} clean, {len(self.bimodal)} with a bimodal loss\n")
        self._print_spikes(has_comparators)
        print()
        for name, rule in (("diverged", "divergence"), ("overfit", "overfitting"), ("nonfinite", "not_finite")):
            self._print_per_run(name, rule)
        self._print_step_times()
        print()
        self._print_alerts_by_rule()
        self._print_any_warning()
        self._print_halves()

    def _print_spikes(self, has_comparators: bool) -> None:
        rules: dict[str, Callable[[Run], Steps]] = {"ours": lambda run: spikes_of(self.alerts[run])}
        if has_comparators:
            rules["6 sigma of 128 before"] = lambda run: sigma_rule(self._losses[run])
            rules["3 sigma of 50 before"] = lambda run: sigma_rule(self._losses[run], 50, 3.0)
        labels = [
            label
            for label in self.logs.labels
            if label.name == "spike" and label.metric.endswith("loss") and label.status in _WEAK_SPIKES
        ]
        by_eye = [label for label in self.logs.labels if label.name == "spike" and label.is_by_eye]
        print(f"{'loss spikes':24}{'recall':>18}{'clean runs':>16}{'bimodal runs':>16}{'by eye true':>14}{'false':>8}")
        for name, find in rules.items():
            found = {run: find(run) for run in self.logs.runs}
            hits = sum(self._is_hit(label, found[label.run]) for label in labels)
            clean = sum(bool(found[run]) for run in self.clean)
            bimodal = sum(bool(found[run]) for run in self.bimodal)
            true = [bool(found[label.run]) for label in by_eye if label.status == "true"]
            false = [bool(found[label.run]) for label in by_eye if label.status.startswith("false")]
            print(
                f"{name:24}{_share(hits, len(labels)):>18}{_share(clean, len(self.clean)):>16}"
                f"{_share(bimodal, len(self.bimodal)):>16}{sum(true):>9}/{len(true)}{sum(false):>7}/{len(false)}"
            )
            if name == "ours":
                self._require("spike recall >= 85 %", hits >= 0.85 * len(labels))
                self._require("alerts on <= 2 % of the clean runs", clean <= 0.02 * len(self.clean))
                self._require("alerts on <= 5 % of the bimodal runs", bimodal <= 0.05 * len(self.bimodal))

    def _is_hit(self, label: Label, found: Steps) -> bool:
        """Return whether something was found within the labelled stretch, or a few points around it."""
        steps = self._loss_steps[label.run]
        begin, end = steps.index(label.first_step), steps.index(label.last_step)
        low, high = steps[max(0, begin - _TOLERANCE)], steps[min(len(steps) - 1, end + _TOLERANCE)]
        return any(low <= step <= high for step in found)

    def _print_per_run(self, name: str, rule: str) -> None:
        """Compare the labels of each run with whether the rule fired at all."""
        fired = {run for run, alerts in self.alerts.items() if any(alert["rule"] == rule for alert in alerts)}
        labels = [label for label in self.logs.labels if label.name == name]
        true = {label.run for label in labels if label.is_by_eye and label.status == "true"}
        if name == "nonfinite":
            true = {label.run for label in labels}
        false = {label.run for label in labels if label.is_by_eye and label.status.startswith("false")}
        weak = {label.run for label in labels if not label.is_by_eye and label.status == "weak"}
        clean = [run for run in self.clean if run in fired]
        print(
            f"{rule:24}true {len(true & fired)}/{len(true)}   false {len(false & fired)}/{len(false)}   "
            f"weak {len(weak & fired)}/{len(weak)}   clean runs {_share(len(clean), len(self.clean))}"
        )
        self._require(f"{rule}: >= 95 % of the true ones", len(true & fired) >= 0.95 * len(true))
        self._require(f"{rule}: none of the false ones", not false & fired)

    def _print_step_times(self) -> None:
        planned = {label.run for label in self.logs.labels if label.status == "hard_negative_scheduled_change"}
        fired = {
            rule: {run for run, alerts in self.alerts.items() if any(a["rule"] == rule for a in alerts)}
            for rule in ("throughput_regression", "step_time_change", "step_outliers")
        }
        for rule, runs in fired.items():
            timed = [run for run in self.logs.runs if any("sec_per_step" in record for record in self.logs.runs[run])]
            rest = [run for run in timed if run not in planned]
            print(
                f"{rule:24}planned changes {_share(len(runs & planned), len(planned))}   "
                f"other timed runs {_share(sum(run in runs for run in rest), len(rest))}"
            )
        self._require("planned changes are no regressions", not fired["throughput_regression"] & planned)

    def _print_alerts_by_rule(self) -> None:
        print("runs with at least one alert, by rule (clean / bimodal / all):")
        rules = sorted({alert["rule"] for alerts in self.alerts.values() for alert in alerts})
        for rule in rules:
            fired = {run for run, alerts in self.alerts.items() if any(alert["rule"] == rule for alert in alerts)}
            clean, bimodal = sum(run in fired for run in self.clean), sum(run in fired for run in self.bimodal)
            among = f"{clean:>4}/{len(self.clean)}{bimodal:>6}/{len(self.bimodal)}{len(fired):>6}/{len(self.alerts)}"
            print(f"  {rule:24}{among}")

    def _print_any_warning(self) -> None:
        warned = {run for run, alerts in self.alerts.items() if any(alert["severity"] != "info" for alert in alerts)}
        clean, bimodal = sum(run in warned for run in self.clean), sum(run in warned for run in self.bimodal)
        print(f"any warning: clean runs {_share(clean, len(self.clean))}, bimodal {_share(bimodal, len(self.bimodal))}")
        self._require("a warning on <= 3 % of the clean runs", clean <= 0.03 * len(self.clean))

    def _print_halves(self) -> None:
        """Print the main figures for each half of the runs."""
        planned = {label.run for label in self.logs.labels if label.status == "hard_negative_scheduled_change"}
        overfit = {label.run for label in self.logs.labels if label.name == "overfit" and label.status != "false"}
        warned = {
            run: {alert["rule"] for alert in alerts if alert["severity"] != "info"}
            for run, alerts in self.alerts.items()
        }
        spikes = [label for label in self.logs.labels if label.name == "spike" and label.status in _WEAK_SPIKES]
        spikes = [label for label in spikes if label.metric.endswith("loss")]
        print(f"\n{'by half of the runs':44}{'tuned':>16}{'held out':>16}")
        rows: dict[str, list[str]] = defaultdict(list)
        for half in (0, 1):
            labels = [label for label in spikes if half_of(label.run[1]) == half]
            hits = sum(self._is_hit(label, spikes_of(self.alerts[label.run])) for label in labels)
            rows["spikes"].append(_share(hits, len(labels)))
            for name, runs, is_counted in (
                ("clean runs with a spike", self.clean, lambda run: "loss_spike" in warned[run]),
                ("clean runs with any warning", self.clean, lambda run: bool(warned[run])),
                ("mixed losses with any warning", self.bimodal, lambda run: bool(warned[run])),
                ("planned schedules with a warning", planned, lambda run: bool(warned[run])),
                ("labelled overfitting with a warning", overfit, lambda run: "overfitting" in warned[run]),
            ):
                part = [run for run in runs if half_of(run[1]) == half]
                rows[name].append(_share(sum(map(is_counted, part)), len(part)))
        for name, shares in rows.items():
            print(f"{name:44}" + "".join(f"{share:>16}" for share in shares))

    def real_bases(self) -> list[Base]:
        """Return clean runs to inject faults into."""
        return real_bases(self.logs.runs[run] for run in self.clean)


def print_small_models(runs: dict[Run, list[Record]]) -> None:
    """Print how many alerts the rules open on runs without labels, by half; look at the curves to judge them."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    most: dict[str, int] = defaultdict(int)
    for (_, run), records in runs.items():
        opened = Counter((alert["rule"], alert["severity"]) for alert in judge(records) if alert["status"] == "opened")
        for key, count in opened.items():
            counts[key][half_of(run)] += count
            most[key[0]] = max(most[key[0]], count)
    sizes = [sum(half_of(run) == half for _, run in runs) for half in (0, 1)]
    print(f"small models, alerts opened in {sizes[0]} tuned and {sizes[1]} held-out runs, and the most in one run:")
    for (rule, severity), (tuned, held_out) in sorted(counts.items()):
        print(f"  {rule:24}{severity:10}{tuned:>6}{held_out:>6}{most[rule]:>6}")


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} {100 * part / max(whole, 1):.1f} %"


def main() -> int:
    targets = Targets()
    path = folder()
    real: list[Base] = []
    if path is None:
        print("No training logs found: set TRAINING_LOGS to the folder that contains labels.csv and the logs.\n")
    else:
        score = Score(load(path), targets)
        score.print()
        real = score.real_bases()
        print()
        print_small_models(load_small_models(path))
        print()
    print_healthy(targets.require)
    print()
    print_faults(real, targets.require)
    print()
    cost = cost_us()
    ratio = f"{cost.ratio:.2f} of encoding the records"
    print(f"cost of all rules per step: {cost.all_us:.2f} us for {cost.description}; {ratio}")
    targets.require("cost <= 3 us per step", cost.all_us <= 3.0)
    print("all targets met" if targets.are_met else "some targets were missed")
    return 0 if targets.are_met else 1


if __name__ == "__main__":
    sys.exit(main())
