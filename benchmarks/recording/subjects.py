"""Ways to log ten scalars per step. Each has its own loop, so that no wrapper is timed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Burst, Rows

__all__ = ["SUBJECTS", "Open"]


class Open(NamedTuple):
    """A subject that is ready to log."""

    burst: Burst
    wait_until_written: Callable[[], object] = lambda: None
    """Waits until everything logged is written, if the subject supports it."""
    journal: Path | None = None


@contextlib.contextmanager
def _tachograph(folder: Path, **settings: Any) -> Iterator[Open]:
    import tachograph

    with tachograph.init("bench", log_dir=folder, console=False, **settings) as run:

        def burst(rows: Rows, first_step: int) -> None:
            log = run.log
            for step, metrics in enumerate(rows, first_step):
                log(metrics, step=step)

        yield Open(burst, run.flush, Path(run.path, "metrics.jsonl") if run.path else None)


@contextlib.contextmanager
def _tachograph_keywords(folder: Path) -> Iterator[Open]:
    import tachograph

    with tachograph.init("bench", log_dir=folder, console=False) as run:

        def burst(rows: Rows, first_step: int) -> None:
            log = run.log
            value = rows[0]["train_loss"]
            for step, _metrics in enumerate(rows, first_step):
                log(
                    train_loss=value,
                    lr=value,
                    grad_norm=value,
                    weight_norm=value,
                    perplexity=value,
                    accuracy=value,
                    tokens_per_sec=value,
                    data_wait_ms=value,
                    forward_ms=value,
                    backward_ms=value,
                    step=step,
                )

        yield Open(burst, run.flush)


@contextlib.contextmanager
def _json_lines(folder: Path) -> Iterator[Open]:
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:

        def burst(rows: Rows, first_step: int) -> None:
            for step, metrics in enumerate(rows, first_step):
                file.write(json.dumps({"step": step, **metrics}) + "\n")
                file.flush()

        yield Open(burst)


@contextlib.contextmanager
def _tensorboard(folder: Path) -> Iterator[Open]:
    from tensorboard.summary import Writer

    with contextlib.closing(Writer(str(folder))) as writer:

        def burst(rows: Rows, first_step: int) -> None:
            add_scalar = writer.add_scalar
            for step, metrics in enumerate(rows, first_step):
                for name, value in metrics.items():
                    add_scalar(name, value, step)

        yield Open(burst, writer.flush)


@contextlib.contextmanager
def _wandb(folder: Path) -> Iterator[Open]:
    import wandb

    settings = wandb.Settings(silent=True, console="off")
    with wandb.init(project="bench", dir=folder, mode="offline", settings=settings) as run:

        def burst(rows: Rows, first_step: int) -> None:
            log = run.log
            for step, metrics in enumerate(rows, first_step):
                log(metrics, step=step)

        yield Open(burst)


@contextlib.contextmanager
def _one_logger(folder: Path) -> Iterator[Open]:
    from nv_one_logger.api.config import LoggerConfig, OneLoggerConfig
    from nv_one_logger.api.one_logger_provider import OneLoggerProvider
    from nv_one_logger.core.attributes import Attributes
    from nv_one_logger.core.event import Event
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.recorder.default_recorder import DefaultRecorder

    own_logs = LoggerConfig(
        log_level="ERROR",
        log_file_path_for_info=str(folder / "info.log"),
        log_file_path_for_err=str(folder / "err.log"),
    )
    config = OneLoggerConfig(
        application_name="bench", world_size_or_fn=1, session_tag_or_fn="bench", logger_config=own_logs
    )
    recorder = DefaultRecorder([FileExporter(folder / "events.json")])
    OneLoggerProvider.instance().configure(config, recorder)
    span = recorder.start("training_loop")

    def burst(rows: Rows, first_step: int) -> None:
        event, create = recorder.event, Event.create
        for step, metrics in enumerate(rows, first_step):
            event(span, create("metrics", Attributes({"step": step, **metrics})))

    yield Open(burst)
    recorder.close()


@contextlib.contextmanager
def _trackio(_folder: Path) -> Iterator[Open]:
    import trackio

    trackio.init(project="bench", embed=False)

    def burst(rows: Rows, first_step: int) -> None:
        log = trackio.log
        for step, metrics in enumerate(rows, first_step):
            log(metrics, step=step)

    yield Open(burst)
    trackio.finish()


class Subject(NamedTuple):
    """Title in the table, how to open the subject, and the number of calls in a burst."""

    title: str
    open: Callable[[Path], contextlib.AbstractContextManager[Open]]
    num_calls: int


SUBJECTS = {
    "dict": Subject("run.log({…}, step=i)", _tachograph, 2000),
    "keywords": Subject("run.log(loss=…, …, step=i)", _tachograph_keywords, 2000),
    "disabled": Subject("run.log({…}), enabled=False", partial(_tachograph, enabled=False), 2000),
    "journal": Subject(
        "journal alone (csv=False, diagnose=False)", partial(_tachograph, csv=False, diagnose=False), 500
    ),
    "diagnosed": Subject("journal and rules (csv=False)", partial(_tachograph, csv=False), 500),
    "mirrored": Subject("journal, rules and metrics.csv (default)", _tachograph, 500),
    "json": Subject("json.dumps, write, flush", _json_lines, 500),
    "one_logger": Subject("nv-one-logger, FileExporter", _one_logger, 250),
    "trackio": Subject("trackio.log, local", _trackio, 500),
    "wandb": Subject("wandb run.log, offline", _wandb, 250),
    "tensorboard": Subject("tensorboard add_scalar × 10", _tensorboard, 50),
}
