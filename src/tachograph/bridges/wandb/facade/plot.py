"""The charts of `wandb.plot`: tables that are recorded under their names, with an event that describes the chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tachograph.bridges.wandb.facade.data_types import Table

if TYPE_CHECKING:
    from tachograph.media import MediaValue

__all__ = [
    "CustomChart",
    "bar",
    "confusion_matrix",
    "histogram",
    "line",
    "line_series",
    "plot_table",
    "pr_curve",
    "roc_curve",
    "scatter",
]

_MAX_CURVE_POINTS = 200


class CustomChart:
    """A chart of a table, or media of ours that shows the same."""

    def __init__(
        self, kind: str, table: Table, title: str, fields: dict[str, Any], media: MediaValue | None = None
    ) -> None:
        self.media = media
        self.kind = kind
        self.table = table
        self.title = title
        self.fields = fields


def line(
    table: Table, x: str, y: str, stroke: str | None = None, title: str = "", split_table: bool = False
) -> CustomChart:
    """Return a line chart of two columns."""
    return CustomChart("line", table, title, {"x": x, "y": y, **({"stroke": stroke} if stroke else {})})


def scatter(table: Table, x: str, y: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a scatter chart of two columns."""
    return CustomChart("scatter", table, title, {"x": x, "y": y})


def bar(table: Table, label: str, value: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a bar chart."""
    return CustomChart("bar", table, title, {"label": label, "value": value})


def histogram(table: Table, value: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a histogram of a column."""
    return CustomChart("histogram", table, title, {"value": value})


def line_series(
    xs: Sequence[Any],
    ys: Sequence[Sequence[Any]],
    keys: Sequence[str] | None = None,
    title: str = "",
    xname: str = "x",
    split_table: bool = False,
) -> CustomChart:
    """Return a chart of several lines, with the same x values for all or with x values for each."""
    first_x = xs[0] if len(xs) else 0
    has_x_per_line = isinstance(first_x, (list, tuple)) or getattr(first_x, "ndim", 0) > 0
    table = Table(columns=["step", "lineKey", "lineVal"])
    for number, values in enumerate(ys):
        name = keys[number] if keys is not None else f"line_{number}"
        for x, y in zip(xs[number] if has_x_per_line else xs, values, strict=False):
            table.add_data(x, name, y)
    return CustomChart("line_series", table, title, {"x": "step", "y": "lineVal", "stroke": "lineKey", "x_name": xname})


def confusion_matrix(
    probs: Any = None,
    y_true: Sequence[int] | None = None,
    preds: Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    title: str = "Confusion Matrix Curve",
    split_table: bool = False,
) -> CustomChart:
    """Return how often each class was predicted for each class.

    Raises:
        ValueError: if neither or both of `probs` and `preds` are given.
    """
    import numpy as np

    from tachograph.media import ConfusionMatrix

    if (probs is None) == (preds is None):
        raise ValueError("give either probabilities or predictions")
    predictions = np.asarray(preds) if probs is None else np.argmax(np.asarray(probs), axis=1)
    actual = np.asarray([] if y_true is None else y_true)
    num_classes = len(class_names) if class_names else int(max([*predictions, *actual], default=-1)) + 1
    names = list(class_names) if class_names else [f"Class_{number + 1}" for number in range(num_classes)]
    counts = np.zeros((num_classes, num_classes), dtype=int)
    for row, column in zip(actual, predictions, strict=True):
        counts[int(row), int(column)] += 1
    table = Table(columns=["Actual", "Predicted", "nPredictions"])
    for row, actual_name in enumerate(names):
        for column, predicted_name in enumerate(names):
            table.add_data(actual_name, predicted_name, int(counts[row, column]))
    media = ConfusionMatrix([int(each) for each in actual], [int(each) for each in predictions], names, caption=title)
    fields = {"actual": "Actual", "predicted": "Predicted"}
    return CustomChart("confusion_matrix", table, title, fields, media)


def pr_curve(
    y_true: Sequence[Any] | None = None,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    interp_size: int = 21,
    title: str = "Precision-Recall Curve",
    split_table: bool = False,
) -> CustomChart:
    """Return precision and recall of each class, for a falling threshold."""
    table = Table(columns=["class", "recall", "precision"])
    for name, is_hit, num_all in _rank_samples(y_true, y_probas, labels, classes_to_plot):
        hits, indexes = 0, _curve_indexes(len(is_hit))
        for num_samples, hit in enumerate(is_hit, 1):
            hits += hit
            if num_samples in indexes:
                table.add_data(name, hits / num_all, hits / num_samples)
    return CustomChart("pr_curve", table, title, {"x": "recall", "y": "precision", "stroke": "class"})


def roc_curve(
    y_true: Sequence[Any] | None = None,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    title: str = "ROC Curve",
    split_table: bool = False,
) -> CustomChart:
    """Return the true and false positive rates of each class, for a falling threshold."""
    table = Table(columns=["class", "fpr", "tpr"])
    for name, is_hit, num_all in _rank_samples(y_true, y_probas, labels, classes_to_plot):
        hits, indexes, num_others = 0, _curve_indexes(len(is_hit)), max(1, len(is_hit) - num_all)
        table.add_data(name, 0.0, 0.0)
        for num_samples, hit in enumerate(is_hit, 1):
            hits += hit
            if num_samples in indexes:
                table.add_data(name, (num_samples - hits) / num_others, hits / num_all)
    return CustomChart("roc_curve", table, title, {"x": "fpr", "y": "tpr", "stroke": "class"})


def plot_table(
    vega_spec_name: str,
    data_table: Table,
    fields: dict[str, Any],
    string_fields: dict[str, Any] | None = None,
    split_table: bool = False,
) -> CustomChart:
    """Return a chart with a specification stored at W&B; only its table is recorded."""
    return CustomChart(vega_spec_name, data_table, str((string_fields or {}).get("title", "")), dict(fields))


def _rank_samples(
    y_true: Any, y_probas: Any, labels: Sequence[str] | None, classes: Sequence[Any] | None
) -> Iterable[tuple[str, list[bool], int]]:
    """Yield for each class whether each sample belongs to it, the most probable first, and how many do."""
    import numpy as np

    actual, probabilities = np.asarray(y_true), np.asarray(y_probas, dtype=float)
    for column, value in enumerate(np.unique(actual)):
        if (classes is not None and value not in classes) or column >= probabilities.shape[1]:
            continue
        is_hit = (actual == value)[np.argsort(-probabilities[:, column], kind="stable")].tolist()
        name = str(labels[int(value)]) if labels is not None and int(value) < len(labels) else str(value)
        yield name, is_hit, sum(is_hit)


def _curve_indexes(num_samples: int) -> set[int]:
    """Return the numbers of samples at which to draw at most 200 points, the last one included."""
    stride = -(-num_samples // _MAX_CURVE_POINTS)
    return {*range(1, num_samples + 1, max(1, stride)), num_samples}
