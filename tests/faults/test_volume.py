"""Large volumes: names, texts, steps, threads."""

from __future__ import annotations

import time

import pytest

import tachograph
from tachograph.reader import read
from tachograph.recorder import _backpressure
from tachograph.spans import timed_span
from tests.conftest import lines_of


@pytest.fixture
def patient(monkeypatch):
    """Let the training wait for the writer of a busy machine, which seems to hang."""
    monkeypatch.setattr(_backpressure, "_STUCK_S", 120.0)
    monkeypatch.setattr(_backpressure, "_HUNG_S", 120.0)


def test_thousand_metric_names(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in range(200):
            run.log({f"metric/{number}": float(step) for number in range(step * 5, step * 5 + 5)}, step=step)
        run.log({f"metric/{number}": 1.0 for number in range(1000)}, step=200)
    history = read(logs / "x")
    names = [name for name in history.metrics if name.startswith("metric/")]
    assert len(names) == 1000
    with open(logs / "x" / "metrics.csv") as file:
        assert sum(name.startswith("metric/") for name in file.readline().strip().split(",")) == 1000
        assert sum(1 for _ in file) == len(lines_of(logs / "x"))


def test_ten_megabyte_text_is_truncated(logs):
    text = "x" * 10_000_000
    with tachograph.init("x", log_dir=str(logs)) as run:
        began_s = time.thread_time()
        run.log({"train_loss": 0.5, "prompt": text}, step=0)
        assert time.thread_time() - began_s < 0.5  # some microseconds
        run.log(train_loss=0.25, step=1)
    assert (logs / "x" / "metrics.jsonl").stat().st_size < 200_000
    history = read(logs / "x")
    assert history.series("train_loss").values.tolist() == [0.5, 0.25]
    assert history.latest("telemetry_error")[0]["field"] == "prompt"


NESTED = """
    import sys, tachograph
    from collections.abc import Mapping
    from tachograph.spans import timed_span

    class Endless(Mapping):
        def __len__(self): return 1
        def __iter__(self):
            while True: yield "same"
        def __getitem__(self, key): return 0.5

    lists = []
    lists += [lists] * 4
    image = [[[0.5] * 512] * 512] * 3
    deep = [1]
    for _ in range(40):
        deep = [deep] * 4
    large = {"lists": lists, "image": image, "deep": deep, "endless": Endless()}
    rows = ({"prompt": "x", "answer": image} for _ in iter(int, 1))
    run = tachograph.init("x", log_dir=sys.argv[1], config={"lr": 0.5, **large}, git=False, system_interval_s=0)
    for step, value in enumerate(large.values()):
        run.log({"loss": 0.5, "x": value}, step=step)
        run.log_validation({"loss": 0.5, "x": value}, step=step)
        run.log_epoch(step, {"x": value})
        run.log_completions([{"prompt": "x", "answer": value}], step=step)
        run.event("name", x=value)
        with timed_span("work", span_attributes={"x": value, "y": 1}):
            pass
    run.log_validation(Endless())
    run.log_completions(rows)
    for step in range(4, 300):
        run.log({"loss": 0.25}, step=step)
    print("finished", run.finish(timeout_s=60))
"""


def test_nested_values_of_any_size_are_cut(logs, script):
    code, out, err = script(NESTED, logs).wait()
    assert code == 0, err
    assert "finished True" in out
    assert "was too large and was cut" in err
    assert err.count("a record was too large") == 1, "the user is warned once"
    history = read(logs / "x")
    assert history.series("loss").steps.tolist() == list(range(300))
    assert history.num_lost_records == 0
    counts = history.counts
    assert (counts["validation"], counts["epoch"], counts["completions"], counts["event"]) == (5, 4, 5, 4)
    assert lines_of(logs / "x")[0]["config"]["lr"] == 0.5
    reported = {record["field"] for record in history.latest("telemetry_error")}
    assert {"config.lists", "x", "val_x"} <= reported
    assert (logs / "x" / "metrics.jsonl").stat().st_size < 10_000_000


@pytest.mark.slow
@pytest.mark.parametrize("num_steps_before", [0, 300], ids=["at once", "after numbers"])
def test_long_texts_take_bounded_memory(logs, script, num_steps_before):
    out = script(
        """
        import resource, sys, tachograph
        from tachograph.recorder import _backpressure
        _backpressure._STUCK_S = _backpressure._HUNG_S = 120.0  # a writer on a busy machine does not hang
        run = tachograph.init("x", log_dir=sys.argv[1], csv=False, system_interval_s=0, git=False)
        num_before = int(sys.argv[2])
        for step in range(num_before):
            run.log({"loss": 1.0}, step=step)
        run.flush(60)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for step in range(num_before, num_before + 600):
            run.log({"loss": 1.0, "text": chr(65 + step % 26) * 5_000_000}, step=step)
        run.finish(timeout_s=120)
        print("growth_mb", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
        """,
        logs,
        num_steps_before,
    ).ok()
    # The texts are 3 GB in all. A loop that has logged only numbers may log texts for a tenth of a second unseen.
    assert int(out.split("growth_mb")[1].split()[0]) < 1_500
    history = read(logs / "x")
    assert history.series("loss").steps.tolist() == list(range(num_steps_before + 600))
    assert history.num_lost_records == 0


@pytest.mark.slow
def test_wide_rows_wait_in_bounded_memory(logs, patient):
    row = {f"metric{number}": number * 1.5 for number in range(5_000)}
    most = 0
    with tachograph.init("x", log_dir=str(logs), csv=False, system_interval_s=0, exit_timeout_s=120) as run:
        for step in range(300):
            run.log(row, step=step)
            most = max(most, len(run.backend.buffer))
    assert most <= 64 * 2**20 / (64 * 5_000) + 1
    history = read(logs / "x")
    assert history.counts["step"] == 300
    assert history.num_lost_records == 0


def test_nothing_stays_in_memory_when_the_mirror_yields(logs):
    """The CSV mirror lets the journal be written in the middle of its work, while a batch is being collected."""
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0, exit_timeout_s=120) as run:
        for number in range(3_000):
            with timed_span("work", span_attributes={"number": number}):
                pass
        assert run.flush(120)
        assert read(logs / "x").counts["span"] == 3_000
    history = read(logs / "x")
    assert history.counts["span"] == 3_000
    assert history.counts["end"] == 1
    assert not run.backend._batch.data


@pytest.mark.parametrize("num_events", [20_000, pytest.param(60_000, marks=pytest.mark.long)])
def test_events_slow_down_instead_of_being_lost(logs, patient, num_events):
    with tachograph.init("x", log_dir=str(logs), csv=False, system_interval_s=0, exit_timeout_s=120) as run:
        for number in range(num_events):
            run.event("tick", number=number)
    history = read(logs / "x")
    assert history.num_lost_records == 0
    assert history.counts["event"] == num_events


@pytest.mark.parametrize("num_steps", [100_000, pytest.param(300_000, marks=pytest.mark.long)])
def test_many_steps_in_flat_memory_without_loss(logs, script, num_steps):
    out = script(
        """
        import resource, sys, psutil, tachograph
        from tachograph.recorder import _backpressure
        _backpressure._STUCK_S = _backpressure._HUNG_S = 120.0  # a writer on a busy machine does not hang
        me = psutil.Process()
        run = tachograph.init("x", log_dir=sys.argv[1], csv=False, system_interval_s=0, git=False)
        rss = []
        num_steps = int(sys.argv[2])
        for step in range(num_steps):
            run.log({"train_loss": 1.0 / (step + 1), "lr": step * 1e-9}, step=step)
            if step % (num_steps // 30) == 0:
                rss.append(me.memory_info().rss >> 10)
        run.finish()
        print("growth_kb", max(rss[10:]) - min(rss[1:4]), max(rss))
        """,
        logs,
        num_steps,
    ).ok()
    assert int(out.split("growth_kb")[1].split()[0]) < 20_000
    with open(logs / "x" / "metrics.jsonl", "rb") as file:
        assert sum(line.startswith(b'{"event":"step"') for line in file) == num_steps


def test_too_large_integer_drops_only_itself(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in (0, 1, 10**400, 2, 3):
            run.log(a=1.0, step=step)
        run.log(a=10**5000, b=2.0, step=4)
        run.log(a=1.0, step=5)
    history = read(logs / "x")
    assert history.series("a").steps.tolist() == [0, 1, 1, 2, 3, 5]
    assert history.series("b").steps.tolist() == [4]
    assert history.num_lost_records == 0
    assert [record["field"] for record in history.latest("telemetry_error")] == ["global_step", "a"]


def test_many_threads_can_log_at_once(logs):
    import threading

    with tachograph.init("x", log_dir=str(logs)) as run:

        def work(number):
            for step in range(2000):
                run.log({f"t{number}": float(step)}, step=step)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.flush()
    history = read(logs / "x")
    for number in range(8):
        assert history.series(f"t{number}").values.tolist() == [float(step) for step in range(2000)]


def test_wall_clock_set_back_is_recorded(logs, monkeypatch):
    import time as clocks

    real = clocks.time
    with tachograph.init("x", log_dir=str(logs), flush_interval_s=0.05) as run:
        for step in range(50):
            run.log(a=1.0, step=step)
        run.flush()
        monkeypatch.setattr(clocks, "time", lambda: real() - 3600)
        run.backend._due_at["check"] = 0.0  # do not wait a second for it
        assert run.flush() and run.flush()
        for step in range(50, 100):
            run.log(a=1.0, step=step)
            clocks.sleep(0.001)
        run.flush()
        monkeypatch.undo()
    history = read(logs / "x")
    assert history.series("a").steps.tolist() == list(range(100))
    assert history.metrics["sec_per_step"].low >= 0
    jumps = [record["jump_s"] for record in history.latest("event") if record.get("name") == "clock_set"]
    assert jumps
    assert abs(jumps[0] + 3600) < 5
    assert history.series("a").times[-1] < history.series("a").times[0]  # the journal keeps the times of the wall clock
