"""Config and metrics that a script gives to other tools, for the run that `tacho run` records.

The script usually states its config before it trains, and may log a few values before its loop starts. Both are kept
until an integration starts the run of this process: the config becomes the config of the run, and the rows follow.
Some programs never train in a way that we recognise. So a run is started at the first row if torch is not imported, and
otherwise after some calls: a trainer that has its own idea of the run, such as one to resume, gets time to start it.
Rows that are still waiting when the process ends are reported to the launcher, because Python starts no threads then.

Values that the script only prints (`_output_reader`) are recorded, too, unless it also logs them, or the loop is
observed and they are its loss. A script often prints a value before it logs it. So if it has imported a tracker, the
first printed value of a metric waits for the second one.

A run that the script starts with Tachograph itself is left alone: the script decides on its content. One that it starts
with our `wandb` is not, because such a script is written for several trackers.

Nothing here may raise into the script, or wait.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import guard

if TYPE_CHECKING:
    from tachograph.integrations.zero_code._printed_values import PrintedValues
    from tachograph.recorder import Run

__all__ = ["ScriptValues"]

_MAX_WAITING = 20
_MAX_DEPTH = 20
_NUM_BINS = 64
_MAX_LINE_CHARS = 200
_TRACKER_MODULES = ("wandb", "torch.utils.tensorboard", "tensorboardX", "mlflow", "trackio", "swanlab")
_OBSERVED_NAMES = frozenset({"loss", "train_loss"})


class ScriptValues:
    """Collects the values that a script passes to other tools, and records them.

    Args:
        start_run: starts the run of this process, given the name of the tool.
        report: reports rows and config to the launcher when the process ends without a run.
        find_config: returns the config of a script that passes it to no tool.
    """

    def __init__(
        self,
        start_run: Callable[[str], object],
        report: Callable[[dict[str, Any]], None],
        find_config: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._start_run = start_run
        self._report = report
        self._find_config = find_config
        self._lock = threading.RLock()  # trackers are also called from other threads
        self._config: dict[str, Any] = {}
        self._waiting: list[Callable[[Run], None]] = []
        self._waiting_rows: list[tuple[int | None, dict[str, Any]]] = []
        self._run: Run | None = None
        self._is_starting = False
        self._is_registered = False
        self._not_recorded: Counter[str] = Counter()
        self.logged: set[str] = set()
        """Names of metrics that the script logs itself."""
        self._printed_lines: dict[str, str] = {}
        """A line for each metric that was read from the output."""
        self._is_loop_run = False
        """Whether an integration has started the run, and so records the loss."""
        self._first_printed: dict[str, tuple[int | None, float]] = {}
        """First values of metrics that may be logged, too."""
        self._confirmed_names: set[str] = set()
        self._last_texts: dict[str, tuple[int | None, int]] = {}
        """The step and the number of the last text of each tag."""
        self._step_offset = 0
        self._last_position = (0, 0)

    # The run -------------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """Return the config so far."""
        with self._lock:
            if not self._config:
                with guard("looking for the config of the script"):
                    self._config = self._find_config()
            return dict(self._config)

    def run_started(self, run: Run) -> None:
        """Record into a run that an integration, or our `wandb`, has started. Its config is known."""
        if run.folder is None:  # another rank, or recording is turned off
            return
        from tachograph.bridges.drop_in import RunEndCallback

        with self._lock:
            self._run = run
            self._is_loop_run = not self._is_starting
            waiting, self._waiting, self._waiting_rows = self._waiting, [], []
            self._printed_lines.clear()
        RunEndCallback(run, lambda: self._before_end(run))
        for record in waiting:
            with guard("recording a call to another tool"):
                record(run)

    def records_into(self, run: Run) -> bool:
        """Return whether it records into a run: one that an integration or our `wandb` has started."""
        return run is self._run

    def _live_run(self) -> Run | None:
        run = self._run
        return run if run is not None and run.status == "running" and not run._is_forked else None

    def _add(
        self,
        tool: str,
        record: Callable[[Run], None],
        row: tuple[int | None, dict[str, Any]] | None = None,
        *,
        is_media: bool = False,
    ) -> None:
        """Record something now, or when the run has started; the module explains when it starts."""
        with self._lock:
            run = self._live_run()
            if run is None:
                if self._run is not None or self._has_own_run():
                    return
                self._waiting.append(record)
                if row is not None:
                    self._waiting_rows.append(row)
                self._report_at_exit()
                is_urgent = (row is not None or is_media) and "torch" not in sys.modules
                if self._is_starting or not (is_urgent or len(self._waiting) >= _MAX_WAITING):
                    return
                self._is_starting = True
        if run is not None:
            record(run)
        else:
            self._start_run(tool)
            self._is_starting = False

    @staticmethod
    def _has_own_run() -> bool:
        """Return whether the script has started a run itself."""
        # None also while another thread is importing the recorder.
        latest_run = getattr(sys.modules.get("tachograph.recorder"), "latest_run", None)
        return latest_run is not None and latest_run() is not None

    def _report_at_exit(self) -> None:
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._report_waiting)

    def _report_waiting(self) -> None:
        with guard("reporting to the launcher"):
            if self._run is None and not self._has_own_run() and (self._config or self._waiting_rows):
                from tachograph.records import to_plain

                self._report(to_plain(self._waiting_values(), "report", []))

    def _waiting_values(self) -> dict[str, Any]:
        return {"config": self._config, "rows": self._waiting_rows, "printed": self._printed_lines}

    # Values of the script --------------------------------------------------------------------------------------------

    def add_config(self, values: Any) -> None:
        """Add to the config of the run; new values replace the previous ones."""
        from tachograph.records import to_plain

        plain = to_plain(values, "config", [])
        if not isinstance(plain, dict) or not plain:
            return
        with self._lock:
            changes = {name: value for name, value in plain.items() if self._config.get(name, self) != value}
            self._config.update(changes)
            run = self._live_run()
            self._report_at_exit()
        if run is not None and changes:
            run.update_config(changes)

    def add_summary(self, tool: str, values: Mapping[str, Any]) -> None:
        """Add results of the run."""
        plain = {str(name): value for name, value in values.items()}
        self._add(tool, lambda run: run.log_summary(plain))

    def add_text(self, tool: str, tag: str, text: str, step: Any) -> None:
        """Add a text. Texts of one tag at one step of a loop are numbered, so that none hides another one."""
        from tachograph.bridges.drop_in import observed_step, place_row

        def record(run: Run) -> None:
            step_of_record, script_step = place_row(run, tool, _as_step(step))
            last_step, last_index = self._last_texts.get(tag, (None, 0))
            is_repeated = observed_step(run) is not None and step_of_record == last_step
            index = last_index + 1 if is_repeated else 0
            self._last_texts[tag] = step_of_record, index
            number = {"index": index} if index else {}
            run.event("text", step=step_of_record, tag=tag, text=text, **number, **script_step)

        self._add(tool, record)

    def add_histogram(self, tool: str, tag: str, values: Any, step: Any) -> None:
        """Add the distribution of an array."""
        from tachograph.bridges.drop_in import histogram

        counts, edges, num_not_finite = histogram(values, _NUM_BINS)
        self._add_counts(tool, tag, counts, edges, _as_step(step), num_not_finite=num_not_finite)

    def _add_counts(
        self,
        tool: str,
        tag: str,
        counts: list[Any],
        edges: list[Any],
        step: int | None,
        own_step: int | None = None,
        **fields: Any,
    ) -> None:
        from tachograph.bridges.drop_in import log_histogram, place_row

        def record(run: Run) -> None:
            step_of_record, script_step = place_row(run, tool, step, own_step)
            log_histogram(run, tag, counts, edges, step=step_of_record, **script_step, **fields)

        self._add(tool, record)

    def log(self, tool: str, values: Mapping[Any, Any], step: Any = None, *, own_step: int | None = None) -> None:
        """Record metrics.

        Args:
            tool: the name of the tool.
            values: names and values, which may be nested.
            step: the step that the script states.
            own_step: the step that the tool counts itself, used if nothing else is known.
        """
        step = _as_step(step)
        row = dict(self._numbers(tool, values, step, own_step))
        if not row:
            return
        self.logged.update(row)

        def record(run: Run) -> None:
            from tachograph.bridges.drop_in import place_row

            step_of_record, script_step = place_row(run, tool, step, own_step)
            run.log({**row, **script_step}, step_of_record)

        self._add(tool, record, (own_step if step is None else step, row))

    def log_media(
        self,
        tool: str,
        name: str,
        convert: Callable[[], Any],
        step: Any,
        kind: str,
        own_step: int | None = None,
    ) -> None:
        """Record media, or count it if it cannot be converted.

        Args:
            tool: the name of the tool.
            name: the name of the media.
            convert: returns the media; it may raise anything.
            step: the step that the script states.
            kind: the class or the method that the script used, to count it.
            own_step: the step that the tool counts itself.
        """
        from tachograph._base.guard import reraise_from_signal_handler
        from tachograph.bridges.drop_in import log_media, place_row

        try:
            media = convert()
            if self._run is None:
                _copy_arrays(media)
        except Exception as error:  # noqa: BLE001 - data of any kind, and private attributes of another package
            reraise_from_signal_handler(error)
            self.count_unrecorded(f"{tool}.{kind}")
            return
        step = _as_step(step)

        def record(run: Run) -> None:
            log_media(run, name, media, *place_row(run, tool, step, own_step))

        self._add(tool, record, is_media=True)

    def log_printed(self, printed: PrintedValues, line: str) -> None:
        """Record metrics that the script printed, unless it logs them, too."""
        logged_names = self._logged_names()
        values = {name: value for name, value in printed.values.items() if name not in logged_names}
        if not values:
            return
        epoch = {} if printed.epoch is None else {"epoch": printed.epoch}
        step = self._printed_step(printed)

        def record(run: Run) -> None:
            from tachograph.bridges.drop_in import place_row

            if self._is_loop_run or getattr(run.span_recorder, "row_step", None) is not None:
                row = {name: value for name, value in values.items() if name not in _OBSERVED_NAMES}
                self._log_confirmed(run, row, place_row(run, "output", printed.step)[0], line)
            else:
                self._log_confirmed(run, values, step, line, epoch)

        if self._run is None:
            self._printed_lines.update({name: line for name in values if name not in self._printed_lines})
        self._add("output", record, (step, {**values, **epoch}))

    def _log_confirmed(
        self,
        run: Run,
        values: Mapping[str, float],
        step: int | None,
        line: str,
        epoch: Mapping[str, int] | None = None,
    ) -> None:
        """Record printed values, and hold back those that the script may be about to log."""
        from tachograph.records import mask_text

        may_be_logged = any(module in sys.modules for module in _TRACKER_MODULES)
        row = dict(values)
        for name in values:
            if name in self._confirmed_names:
                continue
            if may_be_logged and name not in self._first_printed:
                self._first_printed[name] = step, row.pop(name)
                continue
            self._confirmed_names.add(name)
            run.event("read_from_output", metric=name, line=mask_text(line.strip())[:_MAX_LINE_CHARS])
            if name in self._first_printed:
                first_step, first_value = self._first_printed.pop(name)
                run.log({name: first_value}, first_step)
        if row:
            run.log({**row, **(epoch or {})}, step)

    def _logged_names(self) -> set[str]:
        """Return the metrics that the script logs, with the names that they have if they are printed."""
        from tachograph.integrations.zero_code._printed_values import parse_line
        from tachograph.records import SIGNALS, signal_of

        names = set(self.logged)
        if any((signal_of(name) or ("",))[0] == "reward" for name in self.logged):  # printed without its prefix
            names.update(SIGNALS["reward"])
        for name in self.logged:
            printed = parse_line(f"{name}: 0.5")
            names.update(printed.values if printed is not None else ())
        return names

    def _printed_step(self, printed: PrintedValues) -> int | None:
        """Return the step of a line if no loop is observed. Steps that start again in each epoch are added up."""
        last_step, last_epoch = self._last_position
        step, epoch = printed.step, printed.epoch if printed.epoch is not None else last_epoch
        if step is None:
            return epoch if not last_step and printed.epoch is not None else (last_step + self._step_offset) or None
        if step < last_step and epoch > last_epoch:
            self._step_offset += printed.total or last_step
        self._last_position = step, epoch
        return step + self._step_offset

    def count_unrecorded(self, kind: str) -> None:
        """Count a value that cannot be recorded."""
        self._not_recorded[kind] += 1

    def _before_end(self, run: Run) -> None:
        logged_names = self._logged_names() if self._first_printed else set()
        for name, (step, value) in self._first_printed.items():
            if name not in logged_names:
                run.event("read_from_output", metric=name)
                run.log({name: value}, step)
        self._first_printed.clear()
        self._confirmed_names.clear()
        if self._not_recorded:
            run.event("not_recorded", **self._not_recorded)
            self._not_recorded.clear()  # the next run counts its own

    def _numbers(
        self,
        tool: str,
        values: Mapping[Any, Any],
        step: int | None,
        own_step: int | None,
        prefix: str = "",
        depth: int = 0,
    ) -> Iterator[tuple[str, Any]]:
        """Yield the numbers, switches and texts among values, and record histograms; count the rest."""
        from tachograph.bridges.drop_in import as_scalar, num_values

        for key, value in values.items():
            name = f"{prefix}{key}"
            if isinstance(value, (bool, int, float, str)):
                yield name, value
            elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
                yield from self._numbers(tool, value, step, own_step, f"{name}/", depth + 1)
            elif num_values(value) == 1:
                scalar = as_scalar(value)
                # A number if the row has to wait for the run: an array may change until then.
                yield name, scalar.item() if self._run is None else scalar
            elif hasattr(value, "histogram") and hasattr(value, "bins"):
                self._add_counts(tool, name, list(value.histogram), list(value.bins), step, own_step)
            elif value is not None:
                self._log_other(tool, name, value, step, own_step)

    def _log_other(self, tool: str, name: str, value: Any, step: int | None, own_step: int | None) -> None:
        """Record a value that is no number: media of W&B, or a bare picture or figure; count any other."""
        from tachograph.bridges.wandb.logged_media import logged_media

        first = value[0] if isinstance(value, (list, tuple)) and value else value
        kind = type(first).__name__

        def convert() -> Any:
            media = logged_media(value) if tool == "wandb" else None
            if media is None:
                raise TypeError(f"{kind} is no media")
            return media

        self.log_media(tool, name, convert, step, kind, own_step)


def _copy_arrays(media: Any) -> None:
    """Copy the arrays of media that has to wait for a run: the script may change them until then."""
    for value in media if isinstance(media, list) else [media]:
        for name in ("data", "colors"):
            data: Any = getattr(value, name, None)
            if hasattr(data, "detach"):
                setattr(value, name, data.detach().clone())
            elif hasattr(data, "shape") and hasattr(data, "copy"):
                setattr(value, name, data.copy())


def _as_step(step: Any) -> int | None:
    """Return a step, which may be a float or a tensor, as an int; None if it is not a number."""
    try:
        return None if step is None else int(step)
    except (TypeError, ValueError, OverflowError):
        return None
