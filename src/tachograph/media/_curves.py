"""Confusion matrices, precision-recall curves and histograms, computed by the media thread."""

from __future__ import annotations

from typing import Any

from tachograph.media._snapshots import SnapshotError

__all__ = ["confusion_matrix", "histogram", "histogram_of_counts", "histogram_of_exponents", "precision_recall"]

_MAX_COUNT = 1e15
_MAX_CLASSES = 200
_MAX_CURVES = 50
_MAX_POINTS = 200
_LOW_POWER, _HIGH_POWER = -40, 24
"""The bins of counted exponents: the magnitudes from 2^low to 2^high of either sign, and one bin in the middle."""
_EXPONENT_BIAS = 127


def confusion_matrix(y_true: Any, y_pred: Any, labels: list[str] | None) -> dict[str, Any]:
    """Return the counts of each true class (rows) and predicted class (columns).

    Raises:
        SnapshotError: if the classes are not understood.
    """
    import numpy as np

    if y_pred.ndim == 2:  # a score per class
        y_pred = y_pred.argmax(axis=1)
    y_true, y_pred = y_true.reshape(-1), y_pred.reshape(-1)
    if len(y_true) != len(y_pred):
        raise SnapshotError(f"{len(y_true)} true classes and {len(y_pred)} predicted ones")
    if y_true.dtype.kind not in "bui" or y_pred.dtype.kind not in "bui":
        names = labels or sorted({str(name) for name in (*y_true.tolist(), *y_pred.tolist())})
        numbers = {name: number for number, name in enumerate(names)}
        y_true, y_pred = (
            np.array([numbers.get(str(name), -1) for name in classes.tolist()], dtype=np.int64)
            for classes in (y_true, y_pred)
        )
        labels = names
    largest = int(max(y_true.max(initial=-1), y_pred.max(initial=-1)))
    labels = labels or [str(number) for number in range(largest + 1)]
    if len(labels) > _MAX_CLASSES:
        raise SnapshotError(f"{len(labels)} classes; a confusion matrix is stored for at most {_MAX_CLASSES}")
    is_valid = (y_true >= 0) & (y_pred >= 0) & (y_true < len(labels)) & (y_pred < len(labels))
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, (y_true[is_valid].astype(np.int64), y_pred[is_valid].astype(np.int64)), 1)
    item = {"labels": labels, "counts": counts.tolist()}
    num_invalid = int(len(y_true) - np.count_nonzero(is_valid))
    return {**item, "problem": f"{num_invalid} samples have a class without a label"} if num_invalid else item


def precision_recall(y_true: Any, scores: Any, labels: list[str] | None) -> dict[str, Any]:
    """Return a curve per class; the average precision is computed from all samples, the points are thinned.

    Raises:
        SnapshotError: if the arrays do not belong together.
    """
    import numpy as np

    y_true = y_true.reshape(-1)
    if scores.ndim == 1:
        columns = {(labels or ["1"])[-1]: (y_true == 1, scores)}
    elif scores.ndim == 2 and scores.shape[1] <= _MAX_CURVES:
        names = labels or [str(number) for number in range(scores.shape[1])]
        if len(names) != scores.shape[1]:
            raise SnapshotError(f"{len(names)} labels for scores of {scores.shape[1]} classes")
        columns = {name: (y_true == number, scores[:, number]) for number, name in enumerate(names)}
    else:
        raise SnapshotError(f"scores of shape {scores.shape}: expected one per sample, or up to {_MAX_CURVES} columns")
    if len(y_true) != len(scores):
        raise SnapshotError(f"{len(y_true)} classes and {len(scores)} scores")
    curves = []
    for label, (is_positive, class_scores) in columns.items():
        is_finite = np.isfinite(class_scores)
        curves.append(_curve(label, is_positive[is_finite], class_scores[is_finite]))
    return {"curves": curves}


def _curve(label: str, is_positive: Any, scores: Any) -> dict[str, Any]:
    import numpy as np

    order = np.argsort(-scores, kind="stable")
    is_positive, scores = is_positive[order], scores[order]
    num_positive = int(np.count_nonzero(is_positive))
    if not num_positive:
        return {"label": label, "precision": [], "recall": [], "average_precision": None}
    is_last = np.append(scores[1:] != scores[:-1], True)  # equal scores are one threshold
    num_true = np.cumsum(is_positive)[is_last]
    precision = num_true / (np.nonzero(is_last)[0] + 1)
    recall = num_true / num_positive
    average = float(np.sum(np.diff(recall, prepend=0.0) * precision))
    if len(recall) > _MAX_POINTS:
        positions = np.unique(np.linspace(0, len(recall) - 1, _MAX_POINTS).round().astype(np.int64))
        precision, recall = precision[positions], recall[positions]
    return {
        "label": label,
        "precision": precision.round(6).tolist(),
        "recall": recall.round(6).tolist(),
        "average_precision": average,
    }


def histogram(values: Any, num_bins: int) -> dict[str, Any]:
    """Return the bins of values; NaN and infinite ones are counted beside them.

    Raises:
        SnapshotError: if they are no numbers.
    """
    import numpy as np

    values = np.asarray(values).reshape(-1)
    if values.dtype.kind not in "buif" and values.size:
        raise SnapshotError(f"a histogram needs numbers, got {values.dtype} values")
    values = values.astype(np.float64) if values.dtype.kind != "f" or values.dtype.itemsize < 4 else values
    is_finite = np.isfinite(values)
    num_nonfinite = int(values.size - np.count_nonzero(is_finite))
    finite = values[is_finite] if num_nonfinite else values
    if not finite.size:
        return {"edges": [], "counts": [], "n": 0, "nonfinite": num_nonfinite}
    finite = finite.astype(np.float64)
    low, high = float(finite.min()), float(finite.max())
    # A range that overflows a float has no width, and one without any width needs some.
    if not np.isfinite(high - low):
        edges = np.linspace(low / 2, high / 2, num_bins + 1) * 2
    elif high - low <= 1e-12 * max(abs(low), abs(high)):
        margin = max(abs(low), 1.0) * 0.5
        edges = np.linspace(low - margin, high + margin, num_bins + 1)
    else:
        edges = np.linspace(low, high, num_bins + 1)
    counts, _ = np.histogram(finite, bins=edges)
    scale = max(abs(low), abs(high)) or 1.0
    scaled_values = finite / scale
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "n": int(finite.size),
        "min": low,
        "max": high,
        "mean": float(scaled_values.mean() * scale),
        "std": float(scaled_values.std() * scale),
        "nonfinite": num_nonfinite,
    }


def histogram_of_counts(counts: Any, edges: Any) -> dict[str, Any]:
    """Return bins that the caller counted; mean and deviation are computed from the centres.

    Raises:
        SnapshotError: if they are not valid.
    """
    import numpy as np

    try:
        counts, edges = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (counts, edges))
    except (ValueError, TypeError, OverflowError) as error:
        raise SnapshotError(f"the counts and edges of a histogram must be numbers: {error}") from None
    if not (np.isfinite(counts).all() and np.isfinite(edges).all() and (np.diff(edges) >= 0).all()):
        raise SnapshotError("the counts and edges of a histogram must be finite, and the edges in order")
    if (counts < 0).any() or counts.max(initial=0.0) > _MAX_COUNT:
        raise SnapshotError(f"a histogram has counts below 0 or above {_MAX_COUNT:g}")
    num_values = float(counts.sum())
    bins: dict[str, Any] = {
        "edges": edges.tolist(),
        "counts": [int(count) if count == int(count) else count for count in counts.tolist()],
        "n": int(num_values) if num_values == int(num_values) else num_values,
        "nonfinite": 0,
    }
    if num_values:
        centres = (edges[:-1] + edges[1:]) / 2
        mean = float((centres * counts).sum() / num_values)
        in_use = np.nonzero(counts)[0]
        bins |= {"min": float(edges[in_use[0]]), "max": float(edges[in_use[-1] + 1]), "mean": mean}
        bins["std"] = float(np.sqrt((counts * (centres - mean) ** 2).sum() / num_values))
    return bins


def histogram_of_exponents(counts: Any) -> dict[str, Any]:
    """Return the bins of values whose signs and exponents were counted; see `ExponentCounts`.

    The bin in the middle has zeros and smaller magnitudes, and the outermost bins have larger ones.
    """
    import numpy as np

    positive, negative = counts.reshape(2, -1).astype(np.int64)
    first, last = _LOW_POWER + _EXPONENT_BIAS, _HIGH_POWER + _EXPONENT_BIAS
    sides = []
    for side in (positive, negative):
        bins = side[first:last].copy()
        bins[-1] += side[last:-1].sum()
        sides.append(bins)
    middle = positive[:first].sum() + negative[:first].sum()
    bins = np.concatenate((sides[1][::-1], [middle], sides[0]))
    return {
        "exp2": [_LOW_POWER, _HIGH_POWER],
        "counts": bins.tolist(),
        "n": int(bins.sum()),
        "nonfinite": int(positive[-1] + negative[-1]),
    }
