"""Other tools with the same runs, each in a process of its own: ``python -m benchmarks.catalog.peers NAME NUM_RUNS``.

Each tool gets its runs in its own format and is asked through its own Python interface, as its server does it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.child import run_as_child
from tachograph.catalog import Catalog, sort_rows
from tachograph.records import encode

__all__ = ["NUM_KEYS", "NUM_METRICS", "NUM_STEPS", "PEERS", "make_runs", "time_s"]

NUM_KEYS = 40
NUM_METRICS = 10
NUM_STEPS = 20
_NUM_ROUNDS = 5


class GeneratedRun(NamedTuple):
    """A run: its name, its config, and the metrics of each step."""

    name: str
    config: dict[str, float]
    steps: list[dict[str, float]]


def time_s(call: Callable[[], object]) -> float:
    """Return the time that a call takes."""
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def _median_s(call: Callable[[], object]) -> float:
    return sorted(time_s(call) for _ in range(_NUM_ROUNDS))[_NUM_ROUNDS // 2]


def _generate(num_runs: int) -> Iterator[GeneratedRun]:
    chance = random.Random(0)
    for number in range(num_runs):
        config = {f"key{index}": chance.random() for index in range(NUM_KEYS)}
        steps = [{f"metric{index}": chance.random() for index in range(NUM_METRICS)} for _ in range(NUM_STEPS)]
        yield GeneratedRun(f"run-{number:05}", config, steps)


def make_runs(logs: Path, num_runs: int) -> None:
    """Write runs of Tachograph."""
    for number, run in enumerate(_generate(num_runs)):
        folder = logs / run.name
        folder.mkdir(parents=True)
        records: list[dict[str, Any]] = [
            {"event": "start", "time": 1e9 + number, "run_id": f"{number:x}", "config": run.config, "tags": ["a"]}
        ]
        for step, metrics in enumerate(run.steps):
            records.append({"event": "step", "time": 1e9 + number + step, "global_step": step, **metrics})
        records.append({"event": "end", "time": 1e9 + number + NUM_STEPS, "status": "finished"})
        (folder / "metrics.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in records))


def _measure_tachograph(folder: Path, num_runs: int) -> dict[str, float]:
    logs = folder / "logs"
    make_runs(logs, num_runs)
    catalog = Catalog(logs)
    cold_s = time_s(lambda: catalog.rows(is_full=True))
    return {
        "cold": cold_s,
        "again": _median_s(lambda: catalog.rows(is_full=True)),
        "new process": _median_s(lambda: Catalog(logs).rows(is_full=True)),
        "filter": _median_s(lambda: catalog.select("metric3.last<0.03 config.key1>0.5")),
        "sort": _median_s(lambda: sort_rows(catalog.rows(is_full=True), "metric3.last")),
    }


def _measure_tensorboard(folder: Path, num_runs: int) -> dict[str, float]:
    """It keeps no cache, so a new process reads everything; it filters by name only, and does not sort."""
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.scalar.metadata import create_summary_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    metadata = create_summary_metadata("", "")
    for run in _generate(num_runs):
        writer = EventFileWriter(str(folder / "events" / run.name))
        for step, metrics in enumerate(run.steps):
            extra = {"metadata": metadata} if step == 0 else {}
            values = [
                Summary.Value(tag=tag, tensor=TensorProto(dtype=1, float_val=[value]), **extra)
                for tag, value in metrics.items()
            ]
            writer.add_event(Event(wall_time=1e9 + step, step=step, summary=Summary(value=values)))
        writer.close()
    events = str(folder / "events")

    def load() -> EventMultiplexer:
        return EventMultiplexer().AddRunsFromDirectory(events).Reload()

    multiplexer = load()
    cold_s = time_s(load)
    assert len(multiplexer.Runs()) == num_runs
    again_s = _median_s(lambda: multiplexer.AddRunsFromDirectory(events).Reload())
    return {"cold": cold_s, "again": again_s, "new process": cold_s}


def _measure_trackio(folder: Path, num_runs: int) -> dict[str, float]:
    """Its list shows names and configs; last values need the logs of each run."""
    from trackio.sqlite_storage import SQLiteStorage

    for run in _generate(num_runs):
        steps = list(range(NUM_STEPS))
        SQLiteStorage.bulk_log("bench", run.name, run.steps, steps=steps, config=run.config)

    def last_values() -> list[tuple[str, float]]:
        found = [
            (name, SQLiteStorage.get_logs("bench", name)[-1]["metric3"]) for name in SQLiteStorage.get_runs("bench")
        ]
        return sorted(found, key=lambda item: item[1])

    assert len(last_values()) == num_runs
    return {
        "again": _median_s(lambda: (SQLiteStorage.get_runs("bench"), SQLiteStorage.get_all_run_configs("bench"))),
        "sort": time_s(last_values),
    }


def _measure_mlflow(folder: Path, num_runs: int) -> dict[str, float]:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.create_experiment("bench")
    for number, run in enumerate(_generate(num_runs)):
        created = client.create_run(experiment, run_name=run.name)
        metrics = [
            Metric(name, value, 1_000_000 + number, step)
            for step, values in enumerate(run.steps)
            for name, value in values.items()
        ]
        client.log_batch(created.info.run_id, metrics, [Param(key, str(value)) for key, value in run.config.items()])
        client.set_terminated(created.info.run_id)

    def search(filter_string: str = "", order_by: list[str] | None = None) -> int:
        num_found, token = 0, None
        while True:
            page = client.search_runs(
                [experiment], filter_string, max_results=1_000, order_by=order_by, page_token=token
            )
            num_found, token = num_found + len(page), page.token
            if not token:
                return num_found

    assert search() == num_runs
    return {
        "again": _median_s(search),
        # Params are texts to it, so only the metric can be compared as a number.
        "filter": _median_s(lambda: search("metrics.metric3 < 0.03")),
        "sort": _median_s(lambda: search(order_by=["metrics.metric3 ASC"])),
    }


PEERS: dict[str, Callable[[Path, int], dict[str, float]]] = {
    "Tachograph": _measure_tachograph,
    "TensorBoard": _measure_tensorboard,
    "trackio": _measure_trackio,
    "MLflow (SQLite)": _measure_mlflow,
}

if __name__ == "__main__":
    run_as_child(lambda folder, name, num_runs: PEERS[name](folder, int(num_runs)))
