"""`show`: a run as a card in a notebook, with its state, its alerts and its most important charts.

The card is plain HTML with pictures in it: it needs no server and no script, and it is kept when the notebook is saved,
sent or opened on another machine. It takes the colours of the notebook.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from html import escape

from tachograph._base.text import format_duration
from tachograph.reader import HasPath, find_copies, find_readable_run
from tachograph.recorder import Run, current_run
from tachograph.records import signal_of
from tachograph.store import Line, StoredRun

__all__ = ["RunCard", "show"]

_FIRST = ("loss", "val_loss", "reward", "lr", "grad_norm", "step_s", "throughput")
_MAX_CHARTS = 6
_MAX_ALERTS = 5
_WIDTH, _HEIGHT, _MARGIN = 300, 110, 4
_COLORS = ("#3b82d6", "#d9822b", "#2f9e63", "#a05bc0")
_STATE_COLORS = {"running": "#3b82d6", "finished": "#2f9e63", "failed": "#d64545", "crashed": "#d64545"}


def show(
    run: str | os.PathLike[str] | HasPath | None = None,
    *metrics: str,
    log_dir: str | os.PathLike[str] | None = None,
) -> RunCard:
    """Return a run as a card for a notebook cell; evaluate the cell again to bring it up to date.

    Args:
        run: the folder of the run, its name inside `log_dir`, or the `Run` itself; by default the current run.
        metrics: the metrics to draw; by default up to six, such as loss, validation loss and learning rate.
        log_dir: the log folder.

    Raises:
        RunNotFoundError: if there is no such run.
        NoRunError: if no run is given and none is being recorded.

    Example:
        >>> tachograph.show("logs/greyjacket")
    """
    run = current_run() if run is None else run
    if isinstance(run, Run):
        run.flush(timeout_s=1.0)
    path = run if isinstance(run, (str, os.PathLike)) else run.path
    stored_run = StoredRun(find_readable_run("" if path is None else path, log_dir))
    stored_run.refresh()
    return RunCard(stored_run, metrics)


class RunCard:
    """A run as HTML, as it was when the card was made."""

    def __init__(self, run: StoredRun, metrics: Iterable[str] = ()) -> None:
        digest = run.digest
        self._name = digest.name
        self._state = digest.state.value
        last = digest.attempts[-1] if digest.attempts else None
        facts = {
            "step": None if last is None or last.last_step is None else f"{last.last_step:,}",
            "run time": None if digest.duration_s is None else format_duration(digest.duration_s),
        }
        summaries = run.metrics()
        charts = list(metrics) or _important(run.metric_names, find_copies(summaries))
        self._charts = [
            (name, summaries[name].last, run.series(name, num_points=600)[0]) for name in charts if name in summaries
        ]
        self._missing = [name for name in charts if name not in summaries]
        self._facts = {name: value for name, value in facts.items() if value is not None}
        self._alerts = [(alert.severity, alert.title) for alert in digest.open_alerts]
        self._failure = digest.failure
        self._command = f"tacho ui --log-dir {shlex.quote(str(run.folder.path.parent))}"

    def __repr__(self) -> str:
        facts = "".join(f", {name} {value}" for name, value in self._facts.items())
        values = "".join(f"\n  {name}: {last:.6g}" for name, last, _ in self._charts if last is not None)
        return f"{self._name}: {self._state}{facts}{values}"

    def _repr_html_(self) -> str:
        color = _STATE_COLORS.get(self._state, "#8a6d1f")
        facts = "".join(f" · {escape(name)} {escape(value)}" for name, value in self._facts.items())
        parts = [
            f'<div style="margin-bottom:6px"><b>{escape(self._name)}</b> '
            f'<span style="color:{color}">{escape(self._state)}</span>{facts}</div>'
        ]
        if self._failure is not None:
            parts.append(_note("#d64545", ": ".join(filter(None, (self._failure.error_type, self._failure.message)))))
        for severity, title in self._alerts[:_MAX_ALERTS]:
            parts.append(_note("#d64545" if severity == "critical" else "#b7791f", title))
        if len(self._alerts) > _MAX_ALERTS:
            parts.append(_note("#b7791f", f"{len(self._alerts) - _MAX_ALERTS} more alerts"))
        parts += [_note("#b7791f", f"no metric {name!r} in this run") for name in self._missing]
        parts.append('<div style="display:flex;flex-wrap:wrap;gap:12px">')
        parts += [_chart(name, last, lines) for name, last, lines in self._charts]
        parts.append(f'</div><div style="opacity:.65;margin-top:4px"><code>{escape(self._command)}</code></div>')
        return f'<div style="font-family:sans-serif;font-size:13px">{"".join(parts)}</div>'


def _important(names: Iterable[str], copies: Iterable[str]) -> list[str]:
    """Return the metrics to draw: metrics with a known meaning first."""
    excluded_names = set(copies)
    candidates = [
        name for name in names if name not in excluded_names and not name.startswith(("window/", "plugin/", "system/"))
    ]

    def rank(name: str) -> tuple[int, int]:
        signal = signal_of(name)
        if signal is None or signal[0] not in _FIRST:
            return len(_FIRST), 0
        return _FIRST.index(signal[0]), signal[1]

    return sorted(candidates, key=rank)[:_MAX_CHARTS]


def _note(color: str, text: str) -> str:
    return f'<div style="color:{color};margin-bottom:4px">{escape(text[:300])}</div>'


def _chart(name: str, last: float | None, lines: list[Line]) -> str:
    """Return a metric as a picture, with its latest value and its range."""
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in line.y if y is not None]
    value = "" if last is None else f"{last:.5g}"
    title = f'<div><b>{escape(name)}</b> <span style="opacity:.75">{value}</span></div>'
    if not ys:
        return f"<div>{title}</div>"
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys), max(ys)

    def to_point(x: float, y: float) -> str:
        across = _MARGIN + (x - x_low) / ((x_high - x_low) or 1) * (_WIDTH - 2 * _MARGIN)
        up = (y - y_low) / (y_high - y_low) if y_high > y_low else 0.5
        return f"{across:.1f} {_HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN):.1f}"

    paths = []
    for number, line in enumerate(lines):
        path, command = [], "M"
        for x, y in zip(line.x, line.y, strict=True):
            if y is None:
                command = "M"
                continue
            path.append(command + to_point(x, y))
            command = "L"
        if len(path) == 1:
            path.append(path[0].replace("M", "L"))  # a line of no length is drawn as a dot
        paths.append(
            f'<path d="{" ".join(path)}" fill="none" stroke="{_COLORS[number % len(_COLORS)]}" stroke-width="1.5" '
            f'stroke-linecap="round" stroke-linejoin="round"/>'
        )
    frame = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="currentColor" opacity=".15"/>'
    picture = (
        f'<svg role="img" aria-label="{escape(name)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}">{frame}{"".join(paths)}</svg>'
    )
    span = f"{y_low:.4g} to {y_high:.4g}, steps {x_low:,.0f} to {x_high:,.0f}"
    return f'<div>{title}{picture}<div style="opacity:.65;font-size:11px">{span}</div></div>'
