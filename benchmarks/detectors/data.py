"""Loads labelled logs of real runs as records. The logs are not part of the repository."""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
import os
from collections import defaultdict
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]
Run = tuple[str, str]
"""Data set and number."""


def folder() -> Path | None:
    """Return the folder of the logs, `TRAINING_LOGS` or one beside the repository; None if there are none."""
    beside = Path(__file__).resolve().parents[3] / "shared/data/training_logs"
    found = Path(os.environ.get("TRAINING_LOGS", beside))
    return found if (found / "labels.csv").is_file() else None


class Label(NamedTuple):
    run: Run
    metric: str
    name: str
    first_step: int | None
    last_step: int | None
    status: str
    is_by_eye: bool


class Logs(NamedTuple):
    runs: dict[Run, list[Record]]
    labels: list[Label]
    bimodal: set[Run]
    """Runs of workloads whose loss is labelled as bimodal."""


def load(path: Path) -> Logs:
    runs: dict[Run, list[Record]] = defaultdict(list)
    _load_algoperf(path, runs)
    _load_nanogpt(path, runs)
    labels = []
    with open(path / "labels.csv") as file:
        for row in csv.DictReader(file):
            first, last = (int(row[name]) if row[name] else None for name in ("start_step", "end_step"))
            run = (row["dataset"], row["run"])
            by_eye = row["source"] == "by_eye"
            labels.append(Label(run, row["metric"], row["label"], first, last, row["status"], by_eye))
    with open(path / "workloads.csv") as file:
        workloads = {("algoperf", row["run"]): row["workload"] for row in csv.DictReader(file)}
    marked = {workloads.get(label.run) for label in labels if label.status == "hard_negative_bimodal_loss"}
    return Logs(dict(runs), labels, {run for run, workload in workloads.items() if workload in marked})


def half_of(run: str) -> int:
    """Return the half of the data, 0 or 1, that a run belongs to. Rules are tuned on 0; both are reported."""
    return hashlib.sha1(run.encode(), usedforsecurity=False).digest()[0] % 2


def load_small_models(path: Path) -> dict[Run, list[Record]]:
    """Return runs of small research projects, without labels: small and noisy validation sets."""
    rows: dict[str, dict[int, Record]] = defaultdict(dict)
    with gzip.open(path / "small_models.csv.gz", "rt") as file:
        lines = csv.reader(file)
        columns = next(lines)
        for run_name, row, name, value in map(itemgetter(*map(columns.index, ("run", "row", "name", "value"))), lines):
            rows[run_name].setdefault(int(row), {})[name] = float(value or math.nan)
    runs: dict[Run, list[Record]] = {}
    for run, records in rows.items():
        steps = (records[index] for index in sorted(records))
        runs["small_models", run] = [
            {"event": "step", "global_step": int(record.pop("step")), **record} for record in steps
        ]
    return runs


def _load_algoperf(path: Path, runs: dict[Run, list[Record]]) -> None:
    with gzip.open(path / "algoperf.csv.gz", "rt") as file:
        rows = csv.reader(file)  # half a million rows: a dict of each takes several times as long
        names = ("run", "step", "is_eval", "validation_loss", "loss", "grad_norm")
        for run, step, is_evaluation, val_loss, loss, grad_norm in map(itemgetter(*map(next(rows).index, names)), rows):
            record: Record = {"event": "step", "time": float(len(runs)), "global_step": int(step)}
            if is_evaluation == "1":
                record["event"] = "validation"
                record["val_loss"] = float(val_loss or math.nan)
            if loss:
                record["loss"] = float(loss)
            if grad_norm:
                record["grad_norm"] = float(grad_norm)
            runs["algoperf", run].append(record)


def _load_nanogpt(path: Path, runs: dict[Run, list[Record]]) -> None:
    last: dict[str, tuple[int, float]] = {}
    with gzip.open(path / "modded_nanogpt.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            step = int(row["step"])
            record: Record = {"event": "step", "time": float(step), "global_step": step}
            if row["train_loss"]:
                record["loss"] = float(row["train_loss"])
            if row["train_time_ms"]:
                took_ms = float(row["train_time_ms"])
                before = last.get(row["run"])
                if before is not None and step > before[0]:
                    record["sec_per_step"] = (took_ms - before[1]) / (step - before[0]) / 1000
                last[row["run"]] = (step, took_ms)
            if row["val_loss"]:
                record["val_loss"] = float(row["val_loss"])
            runs["modded_nanogpt", row["run"]].append(record)
