"""The results of an evaluation: as metrics, as a table, and as a JSON file."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from tachograph._base.files import make_folder, replace_file
from tachograph._base.printable import safe

__all__ = ["EvaluationResult"]

_FOLDER = "lm_eval_results"
_STDERR = "_stderr"


class EvaluationResult:
    """The results of the harness, for one or more groups of tasks.

    Attributes:
        model: the model.
        rows: task, number of examples, metric and value of each result.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.rows: list[tuple[str, int | None, str, float]] = []
        self._details: list[dict[str, Any]] = []

    def add(self, output: dict[str, Any], num_fewshot: int | None) -> None:
        """Add the result of one call of the harness."""
        shots = output.get("n-shot") or {}
        for task, values in output["results"].items():
            for key, value in values.items():
                metric, _, filter_name = str(key).partition(",")
                if not isinstance(value, (int, float)) or isinstance(value, bool) or metric.endswith(_STDERR):
                    continue
                if not filter_name:
                    continue  # such as the number of samples
                name = metric if filter_name == "none" else f"{metric}/{filter_name}"
                self.rows.append((task, shots.get(task, num_fewshot), name, float(value)))
        self._details.append({"num_fewshot": num_fewshot, **output})

    def metrics(self) -> dict[str, float]:
        """Return the results as `eval/<task>/<metric>`; a task with two numbers of examples is `<task>:<number>`."""
        counts: dict[str, set[int | None]] = {}
        for task, shots, _, _ in self.rows:
            counts.setdefault(task, set()).add(shots)
        return {
            f"eval/{task}:{shots}/{metric}" if len(counts[task]) > 1 else f"eval/{task}/{metric}": value
            for task, shots, metric, value in self.rows
        }

    def table(self) -> Any:
        """Return the results as a table for the console."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(f"LM Eval: {safe(self.model)}"))
        for column, justify in (("task", "left"), ("examples", "right"), ("metric", "left"), ("value", "right")):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        for task, shots, metric, value in self.rows:
            # As texts: a name with brackets is no markup.
            num_shots = "" if shots is None else str(shots)
            table.add_row(Text(safe(task)), num_shots, Text(safe(metric)), f"{value:.4f}")
        return table

    def save(self, output_dir: Path, step: int | None = None) -> Path:
        """Write the results with all details to a new JSON file in `lm_eval_results`; return its path."""
        output_dir.mkdir(parents=True, exist_ok=True)
        folder = output_dir / _FOLDER
        make_folder(folder, below=output_dir)
        now = time.strftime("%Y%m%d-%H%M%S")
        stem = f"{now}_step-{step}" if step is not None else now
        path = folder / f"{stem}.json"
        for number in range(2, 1_000):
            if not path.exists():
                break
            path = folder / f"{stem}_{number}.json"
        content = {"model": self.model, "step": step, "metrics": self.metrics(), "evaluations": self._details}
        data = json.dumps(_without_nan(content), indent=2, default=str, allow_nan=False)
        replace_file(path, data.encode(), below=output_dir)
        return path


def _without_nan(value: Any) -> Any:
    """Replace numbers that JSON does not have by their names."""
    if isinstance(value, dict):
        return {str(key): _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
