"""`profile_function` and `profile_block`: timing, the recorded statistics, and limits."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import subprocess
import sys
import threading
import time

import pytest

import tachograph as tacho
from tachograph.diagnostics import RuleEngine
from tachograph.exceptions import ConfigError
from tachograph.spans import _profile_stats
from tachograph.spans._profile_stats import Meter
from tests.conftest import HANG_S, lines_of, wait_for

SETTINGS = {"flush_interval_s": 0.05, "system_interval_s": 0, "git": False, "console": False}
EVERY_CALL = tacho.ProfilingConfig(min_duration_ms=0)


@pytest.fixture(autouse=True)
def record_every_call():
    """Record calls of any duration, and restore the default config afterwards."""
    tacho.configure_profiling(EVERY_CALL)
    yield
    tacho.configure_profiling(tacho.ProfilingConfig())


def counts(run) -> dict[str, int]:
    """Return the number of recorded calls by name."""
    found: dict[str, int] = {}
    for record in run.records:
        if record["event"] == "profile":
            for series, value in record.items():
                if series.endswith("/count"):
                    name = series.removeprefix("profiling/").removesuffix("/count")
                    found[name] = found.get(name, 0) + value
    return found


# Configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"log_interval": 0}, "log_interval=0: expected an integer of at least 1"),
        ({"log_interval": -1}, "log_interval=-1"),
        ({"log_interval": 1.5}, "log_interval=1.5"),
        ({"log_interval": True}, "log_interval=True"),
        ({"min_duration_ms": -0.1}, "min_duration_ms=-0.1"),
        ({"min_duration_ms": math.nan}, "min_duration_ms=nan"),
        ({"min_duration_ms": math.inf}, "min_duration_ms=inf"),
        ({"min_duration_ms": "1"}, "min_duration_ms='1'"),
        ({"enabled": 1}, "enabled=1: expected True or False"),
    ],
)
def test_invalid_config_values_raise(values, message):
    with pytest.raises(ConfigError, match=message):
        tacho.ProfilingConfig(**values)


def test_config_is_immutable():
    with pytest.raises(AttributeError):
        tacho.ProfilingConfig().log_interval = 0


def test_config_has_documented_defaults():
    config = tacho.ProfilingConfig()
    assert (config.enabled, config.min_duration_ms, config.log_interval) == (True, 0.1, 1)


def test_invalid_arguments_raise():
    for wrong in ({"name": ""}, {"name": 3}, {"config": {"log_interval": 2}}):
        with pytest.raises(ConfigError):
            tacho.profile_function(**wrong)
    with pytest.raises(ConfigError, match="cannot decorate a class"):
        tacho.profile_function(type("Trainer", (), {}))
    with pytest.raises(ConfigError, match="cannot decorate a property"):
        tacho.profile_function(property(lambda self: 1))
    with pytest.raises(ConfigError, match="expected a ProfilingConfig"), tacho.profile_block("x", config=3):
        pass
    with pytest.raises(ConfigError, match="enabled=False"):
        tacho.configure_profiling(None)


# Names -------------------------------------------------------------------------------------------------------------


class Trainer:
    @tacho.profile_function
    def step(self, value=0):
        return value + 1

    @tacho.profile_function()
    def save(self):
        return "saved"

    @tacho.profile_function(name="loading")
    def load(self):
        return "loaded"

    @staticmethod
    @tacho.profile_function
    def collate(samples):
        return sum(samples)

    @tacho.profile_function
    @staticmethod
    def pad(samples):
        return len(samples)

    @classmethod
    @tacho.profile_function
    def make(cls):
        return cls()

    @tacho.profile_function
    @classmethod
    def build(cls):
        return cls()

    def plain(self):
        return "plain"


class SpecialTrainer(Trainer):
    pass


@tacho.profile_function
def evaluate(a, *, b=2):
    """Evaluate."""
    return a + b


def test_series_are_named_after_function_and_class(tacho_run):
    @tacho.profile_function
    def inner():
        return 1

    trainer = SpecialTrainer.make()
    assert [trainer.step(), trainer.step(value=4), trainer.save(), trainer.load()] == [1, 5, "saved", "loaded"]
    assert [Trainer().step(), trainer.collate([1, 2]), Trainer.pad([1]), type(Trainer.build())] == [1, 3, 1, Trainer]
    assert (evaluate(1, b=3), inner(), tacho.profile_function(trainer.plain)()) == (4, 1, "plain")
    with tacho.profile_block("forward"):
        pass
    assert counts(tacho_run) == {
        "SpecialTrainer.make": 1,
        "SpecialTrainer.step": 2,
        "SpecialTrainer.save": 1,
        "loading": 1,
        "Trainer.step": 1,
        "Trainer.collate": 1,
        "Trainer.pad": 1,
        "Trainer.build": 1,
        "evaluate": 1,
        "inner": 1,
        "SpecialTrainer.plain": 1,
        "forward": 1,
    }


def test_decorator_preserves_name_doc_and_signature():
    assert (evaluate.__name__, evaluate.__doc__) == ("evaluate", "Evaluate.")
    assert str(inspect.signature(evaluate)) == "(a, *, b=2)"


# Recorded values ---------------------------------------------------------------------------------------------------


def test_record_has_mean_p95_count_and_total(tacho_run):
    for _ in range(3):
        with tacho.profile_block("wait"):
            time.sleep(0.01)
    (record,) = [record for record in tacho_run.records if record["event"] == "profile"]
    assert list(record) == [
        "event",
        "time",
        "profiling/wait",
        "profiling/wait/p95",
        "profiling/wait/count",
        "profiling/wait/total",
    ]
    assert 0.01 <= record["profiling/wait"] <= record["profiling/wait/p95"]
    assert record["profiling/wait/count"] == 3
    assert record["profiling/wait/total"] == pytest.approx(3 * record["profiling/wait"])
    tacho.log(train_loss=1.0, step=7)
    evaluate(1)
    later = [record for record in tacho_run.records if record["event"] == "profile"][1:]
    assert [(record["global_step"], "profiling/wait" in record) for record in later] == [(7, False)]


def test_percentile_is_an_observed_duration():
    meter = Meter("x")
    meter.queue.extend(map(float, range(1, 101)))
    assert list(meter.drain().values()) == [50.5, 95.0, 100, 5050.0]
    meter.queue.append(3.0)
    assert list(meter.drain().values()) == [3.0, 3.0, 1, 3.0]
    assert meter.drain() == {}


def test_meter_samples_percentile_of_many_calls():
    meter = Meter("x")
    for number in range(200_000):
        meter.queue.append(float(number % 2_000))
        if len(meter.queue) >= 4096:
            meter.try_fold()
            assert not meter.queue
    assert len(meter._samples) <= 8192
    mean_s, p95_s, count, total_s = meter.drain().values()
    assert (count, total_s, mean_s) == (200_000, 100 * sum(range(2_000)), 999.5)
    assert p95_s == pytest.approx(1900, abs=40)


def test_sampling_leaves_the_random_numbers_of_the_program_alone():
    program = """
import random
from tachograph.spans._profile_stats import Meter

meter, before = Meter("x"), random.getstate()
for _ in range(5):
    meter.queue.extend([1.0] * 4096)
    meter.try_fold()
assert len(meter._samples) < 5 * 4096, "nothing was sampled"
assert random.getstate() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_S)  # here, other threads draw numbers too


def test_call_below_min_duration_is_ignored(tacho_run):
    config = tacho.ProfilingConfig(min_duration_ms=5, log_interval=2)
    # Three calls are long enough; `log_interval=2` records the first and the second of them.
    for duration_s in (0.005, 0.0049, 0.004, 0.006, 0.001, 0.007):
        _profile_stats.record("work", duration_s, config)
    (record,) = [record for record in tacho_run.records if record["event"] == "profile"]
    assert (record["profiling/work/count"], record["profiling/work/total"]) == (2, 0.011)
    tacho.configure_profiling(tacho.ProfilingConfig(min_duration_ms=60_000))
    evaluate(1)
    assert counts(tacho_run) == {"work": 2}


@pytest.mark.parametrize(("interval", "num"), [(1, 30), (2, 16), (10, 4), (100, 1)])
def test_log_interval_records_first_and_every_nth_call(tacho_run, interval, num):
    tacho.configure_profiling(tacho.ProfilingConfig(min_duration_ms=0, log_interval=interval))
    for _ in range(30):
        evaluate(1)
        with tacho.profile_block("block"):
            pass
    assert counts(tacho_run) == {"evaluate": num, "block": num}


def test_exception_propagates_and_is_timed(tacho_run):
    error = ValueError("mine")

    @tacho.profile_function
    def fails():
        raise error

    with pytest.raises(ValueError) as raised:
        fails()
    with pytest.raises(ValueError) as raised_in_block, tacho.profile_block("block"):
        raise error
    assert raised.value is raised_in_block.value is error
    assert counts(tacho_run) == {"fails": 1, "block": 1}


def test_disabled_profiling_records_nothing(tacho_run):
    timed = tacho.profile_function(name="own", config=EVERY_CALL)(lambda: 1)
    tacho.configure_profiling(tacho.ProfilingConfig(enabled=False))
    evaluate(1)
    timed()
    list(tacho.profile_function(name="generator")(count_down)(2))
    with tacho.profile_block("block"), tacho.profile_block("own block", config=EVERY_CALL):
        pass
    assert counts(tacho_run) == {}
    tacho.configure_profiling(EVERY_CALL)
    with tacho.profile_block("off", config=tacho.ProfilingConfig(enabled=False)):
        timed()
    assert counts(tacho_run) == {"own": 1}


def count_down(number):
    while number:
        sent = yield number
        number = sent if sent is not None else number - 1
    return "done"


def test_generators_are_timed_until_exhausted(tacho_run):
    timed = tacho.profile_function(count_down)
    generator = timed(3)
    assert [next(generator), generator.send(1)] == [3, 1]
    assert counts(tacho_run) == {}
    with pytest.raises(StopIteration, match="done"):
        next(generator)
    assert list(timed(2)) == [2, 1]
    unfinished = timed(2)
    next(unfinished)
    unfinished.close()
    assert counts(tacho_run) == {"count_down": 3}


class Server:
    @tacho.profile_function
    async def answer(self, number):
        await asyncio.sleep(0.01)
        return number * 2

    @tacho.profile_function
    async def stream(self, number):
        for item in range(number):
            try:
                yield item
            except KeyError:
                yield "caught"


def test_coroutine_time_includes_awaiting(tacho_run):
    async def main():
        server = Server()
        assert await asyncio.gather(server.answer(1), server.answer(2)) == [2, 4]
        assert [item async for item in server.stream(3)] == [0, 1, 2]
        items = server.stream(2)
        assert await items.__anext__() == 0
        assert await items.athrow(KeyError()) == "caught"
        await items.aclose()

    assert inspect.iscoroutinefunction(Server.answer)
    assert inspect.isasyncgenfunction(Server.stream)
    asyncio.run(main())
    records = [record for record in tacho_run.records if record["event"] == "profile"]
    assert counts(tacho_run) == {"Server.answer": 2, "Server.stream": 2}
    assert records[0]["profiling/Server.answer"] >= 0.01


def test_profile_block_is_reentrant(tacho_run):
    block = tacho.profile_block("kept")
    with block:
        time.sleep(0.002)
        with block:
            pass
    with block:
        pass
    (record,) = [record for record in tacho_run.records if record["event"] == "profile"]
    assert record["profiling/kept/count"] == 3
    assert record["profiling/kept/total"] >= 0.002


# Target run --------------------------------------------------------------------------------------------------------


def test_profiling_without_run_does_nothing():
    assert evaluate(1) == 3
    with tacho.profile_block("x"):
        pass


def test_profiling_after_finish_does_nothing(logs, caplog):
    with tacho.init("x", log_dir=logs, **SETTINGS):
        evaluate(1)
    evaluate(1)
    assert not caplog.records
    assert tacho.read(logs / "x").series("profiling/evaluate/count").values.tolist() == [1]


def test_a_disabled_run_records_nothing(logs):
    with tacho.init("x", log_dir=logs, enabled=False):
        evaluate(1)
    assert not logs.exists()


def test_profile_goes_to_current_run(logs):
    with tacho.init("outer", log_dir=logs, **SETTINGS):
        evaluate(1)
        with tacho.init("inner", log_dir=logs, **SETTINGS):
            evaluate(1)
            evaluate(1)
        evaluate(1)
    found = {
        name: tacho.read(logs / name).series("profiling/evaluate/count").values.sum() for name in ("outer", "inner")
    }
    assert found == {"outer": 2, "inner": 2}


def test_profile_is_written_without_another_call(logs):
    with tacho.init("x", log_dir=logs, **SETTINGS) as run:
        run.log(a=1.0, step=5)
        run.flush()
        evaluate(1)
        started_s = time.monotonic()
        (record,) = wait_for(lambda: list(tacho.read(logs / "x").records("profile")))
        assert record["global_step"] == 5
        for _ in range(100):
            evaluate(1)
            time.sleep(0.005)
    assert lines_of(logs / "x")[-1]["event"] == "end"
    history = tacho.read(logs / "x")
    assert len(list(history.records("profile"))) <= 3 + (time.monotonic() - started_s) / 0.9  # finish adds one
    assert history.series("profiling/evaluate/count").values.sum() == 101
    assert history.metrics["profiling/evaluate"].kind == "profile"
    assert history.latest("profile") == []


def test_concurrent_calls_are_all_counted(logs):
    def work():
        for _ in range(5_000):
            with tacho.profile_block("shared"):
                pass

    with tacho.init("x", log_dir=logs, **SETTINGS) as run:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.flush()
    assert tacho.read(logs / "x").series("profiling/shared/count").values.sum() == 20_000


def test_queue_length_is_bounded(tacho_run):
    for _ in range(20_000):
        with tacho.profile_block("fast"):
            pass
        (stats,) = tacho_run.collectors
        assert len(stats.meters["fast"].queue) <= 4096
    assert counts(tacho_run) == {"fast": 20_000}


def test_profile_is_mirrored_to_csv(logs, monkeypatch):
    monkeypatch.setattr("tachograph.recorder._writer._LAST_CATCH_UP_S", HANG_S)
    with tacho.init("x", log_dir=logs, **SETTINGS):
        evaluate(1)
    head, *rows = (logs / "x" / "metrics.csv").read_text().splitlines()
    (row,) = [dict(zip(head.split(","), row.split(","), strict=True)) for row in rows if row.startswith("profile,")]
    assert row["profiling/evaluate/count"] == "1"


def test_rules_ignore_profile_records():
    engine = RuleEngine()
    for second in range(100):
        engine.observe({"event": "profile", "time": float(second), "train_loss": math.nan, "global_step": second})
    assert engine.signals == {}


def test_number_of_names_is_bounded_and_reported(tacho_run):
    for number in range(300):
        with tacho.profile_block(f"step {number}"):
            pass
    assert len(counts(tacho_run)) == 200
    (error,) = [record for record in tacho_run.records if record["event"] == "telemetry_error"]
    assert (error["kind"], error["field"]) == ("too_many_names", "step 200")


@pytest.mark.skipif(sys.platform == "win32", reason="requires os.fork")
def test_forked_child_records_no_profile(script, logs):
    script(
        """
        import os, sys, tachograph as tacho
        tacho.configure_profiling(tacho.ProfilingConfig(min_duration_ms=0))
        with tacho.init("x", log_dir=sys.argv[1], git=False, console=False):
            with tacho.profile_block("before"): pass
            pid = os.fork()
            if pid == 0:
                for _ in range(10_000):
                    with tacho.profile_block("child"): pass
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            with tacho.profile_block("after"): pass
        """,
        logs,
    ).ok()
    metrics = tacho.read(logs / "x").metrics
    assert {name for name in metrics if name.endswith("/count")} == {"profiling/before/count", "profiling/after/count"}


def test_each_rank_records_its_own_profile(script, logs):
    source = """
        import os, sys, time, tachograph as tacho
        tacho.configure_profiling(tacho.ProfilingConfig(min_duration_ms=0))
        with tacho.init("x", log_dir=sys.argv[1], git=False, console=False, flush_interval_s=0.05):
            for _ in range(1 + int(os.environ["RANK"])):
                with tacho.profile_block("forward"): pass
            sys.stdin.readline()
        """
    ranks = [
        script(source, logs, env={"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29999"}) for rank in (0, 1)
    ]
    path = logs / "x" / "ranks" / "00001.jsonl"
    wait_for(lambda: path.exists() and b'"profile"' in path.read_bytes())
    for process in reversed(ranks):
        assert process.process.stdin is not None
        process.process.stdin.write("\n")
        process.process.stdin.flush()
        process.ok()
    rank_records = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(record.get("profiling/forward/count", 0) for record in rank_records) == 2
    assert tacho.read(logs / "x").series("profiling/forward/count").values.sum() == 1
