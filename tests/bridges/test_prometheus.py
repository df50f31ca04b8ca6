"""The Prometheus sink, checked with promtool and scraped by a real Prometheus."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

import tachograph
from tachograph.bridges.prometheus import sink as prometheus
from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tachograph.sinks import build_sinks
from tests.conftest import HANG_S, reserve_port, wait_for


def fetch(url):
    # Without a proxy: the address is on this machine.
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=HANG_S)


def find_program(name):
    path = shutil.which(name)
    assert path, f"{name} not found: install it with `make tools`"
    return path


def check_format(page):
    """Check names, types, units and the format with Prometheus' own tool."""
    done = subprocess.run([find_program("promtool"), "check", "metrics"], input=page, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def samples(page):
    found = {}
    for line in page.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name not in found
            found[name] = float(value)
    return found


def start(logs, options, name="x", **settings):
    return tachograph.init(
        name, log_dir=str(logs), sinks=[{"prometheus": options}], git=False, exit_timeout_s=HANG_S, **settings
    )


def log_everything(run):
    for step in range(5):
        run.log({"train_loss": math.nan, 'odd "name"\\\n': math.inf, "acc@1": 0.5, "epoch": 2}, step=step)
    run.log_validation({"loss": 0.25}, step=4)
    run.log_checkpoint("last.pt", step=4)
    run.add_record("system", {"gpu0_util_pct": 50.0, "gpu0_mem_used_gb": 2.0, "gpu0_temp_c": 40, "disk_free_gb": 1.0})
    run.add_record("alert", {"id": "a", "status": "opened", "severity": "info", "title": "T"})
    run.add_record("step", {"global_step": 5, "window/share_data": 0.125, "window/mfu": 0.5, "sec_per_step": 0.25})


def test_page_follows_the_conventions_of_prometheus(logs):
    port = reserve_port()
    with start(logs, {"port": port}, system_interval_s=0.1) as run:
        log_everything(run)
        url = f"http://127.0.0.1:{port}/metrics"

        def full_page():
            with contextlib.suppress(urllib.error.URLError):  # not there yet
                text = fetch(url).read()
                return b"window_time" in text and b"host_cpu" in text and text

        page = wait_for(full_page)
        assert fetch(url).headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(f"http://127.0.0.1:{port}/other")
    check_format(page)
    found = samples(page)
    assert math.isnan(found['tachograph_metric{run="x",name="train_loss"}'])
    assert found['tachograph_metric{run="x",name="odd \\"name\\"\\\\\\n"}'] == math.inf
    assert found['tachograph_metric{run="x",name="val_loss"}'] == 0.25
    assert found['tachograph_training_step{run="x"}'] == 5
    assert found['tachograph_training_epoch{run="x"}'] == 2
    assert found['tachograph_step_duration_seconds{run="x"}'] == 0.25
    assert found['tachograph_gpu_utilization_ratio{run="x",gpu="0"}'] == 0.5
    assert found['tachograph_gpu_memory_used_bytes{run="x",gpu="0"}'] == 2 << 30
    assert found['tachograph_window_time_ratio{run="x",phase="data"}'] == 0.125
    assert found['tachograph_model_flops_utilization_ratio{run="x"}'] == 0.5
    assert found['tachograph_open_alerts{run="x",severity="info"}'] == 1
    assert found['tachograph_records_total{run="x",kind="checkpoint"}'] == 1
    assert found['tachograph_run_state{run="x",state="running"}'] == 1
    assert found['tachograph_process_resident_memory_bytes{run="x"}'] > 1 << 20
    assert 0 <= found['tachograph_host_memory_usage_ratio{run="x"}'] <= 1
    assert any(name.startswith(f'tachograph_run_info{{run="x",run_id="{run.id}"') for name in found)
    assert "global_step" not in page.decode() and "_pct" not in page.decode()
    with pytest.raises(OSError, match="refused"):
        fetch(url)  # it ends with the run
    assert read(logs / "x").latest("telemetry_error") == []


def test_prometheus_scrapes_a_run(logs, tmp_path):
    port, own_port = reserve_port(), reserve_port()
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: tachograph, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
    )
    with start(logs, {"port": port}, system_interval_s=0) as run, open(tmp_path / "log", "wb") as log:
        run.log(train_loss=0.125, step=7)
        server = subprocess.Popen(
            [
                find_program("prometheus"),
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{own_port}",
            ],
            stdout=log,
            stderr=log,
        )

        def query(text):
            assert server.poll() is None, (tmp_path / "log").read_text()
            try:
                answer = fetch(f"http://127.0.0.1:{own_port}/api/v1/query?query={urllib.parse.quote(text)}")
            except OSError:  # it is starting
                return None
            return json.load(answer)["data"]["result"]

        try:
            (loss,) = wait_for(lambda: query('tachograph_metric{name="train_loss"}'), "the first scrape")
            assert loss["value"][1] == "0.125"
            assert loss["metric"]["run"] == "x"
            joined = query("tachograph_training_step * on(run) group_left(run_id) tachograph_run_info")
            assert (joined[0]["metric"]["run_id"], joined[0]["value"][1]) == (run.id, "7")
            run.finish()
            assert wait_for(lambda: query("up{job='tachograph'} == 0"), "the end of the target")
            assert wait_for(lambda: query("tachograph_training_step") == [], "the end of the series")
        finally:
            server.kill()
            server.wait()


def test_files_of_several_runs_live_side_by_side(logs, tmp_path):
    folder = tmp_path / "textfiles"
    folder.mkdir()
    old, other = folder / "tachograph-old.prom", folder / "node.prom"
    for path in (old, other):
        path.write_text("x 1\n")
        os.utime(path, (0, 0))
    with (
        start(logs, {"textfile": str(folder)}, "a", system_interval_s=0) as first,
        start(logs, {"textfile": str(folder)}, "b", system_interval_s=0) as second,
    ):
        for run in (first, second):
            log_everything(run)
        file = folder / "tachograph-a.prom"
        wait_for(lambda: file.exists() and b"training_step" in file.read_bytes(), "the file")
        check_format(file.read_bytes())
        second.finish("failed", reason="ValueError")
    assert sorted(path.name for path in folder.iterdir()) == ["node.prom", "tachograph-a.prom", "tachograph-b.prom"]
    for name, state in (("a", "finished"), ("b", "failed")):
        page = (folder / f"tachograph-{name}.prom").read_bytes()
        check_format(page)
        found = samples(page)
        assert found[f'tachograph_run_state{{run="{name}",state="{state}"}}'] == 1
        assert found[f'tachograph_run_end_time_seconds{{run="{name}"}}'] > 0
        assert b"train_loss" not in page  # the values end with the run


def test_killed_run_is_marked_as_failed(logs, tmp_path, script):
    program = script(
        """
        import sys, time, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], sinks=[{"prometheus": {"textfile": sys.argv[2]}}], git=False)
        run.log(train_loss=1.0, step=1)
        time.sleep(1_000)
        """,
        logs,
        tmp_path,
    )
    file = tmp_path / "tachograph-x.prom"
    wait_for(lambda: file.exists() and b"training_step" in file.read_bytes(), "the file")
    program.process.kill()
    wait_for(lambda: b'state="failed"} 1.0' in file.read_bytes(), "the end")


def test_number_of_names_is_limited_and_reported(logs, tmp_path):
    with start(logs, {"textfile": str(tmp_path)}, system_interval_s=0) as run:
        for step in range(10):
            run.log({f"m{step}/{n}": 1.0 for n in range(100)}, step=step)
        file = tmp_path / "tachograph-x.prom"
        wait_for(lambda: file.exists() and b'training_step{run="x"} 9.0' in file.read_bytes(), "the file")
        found = samples(file.read_bytes())
        check_format(file.read_bytes())
        wait_for(lambda: read(logs / "x").latest("telemetry_error"), "the report")
    assert len([name for name in found if name.startswith("tachograph_metric{")]) == 500
    assert found['tachograph_metric_names_dropped{run="x"}'] == 500
    (error, *_) = read(logs / "x").latest("telemetry_error")
    assert (error["kind"], error["field"]) == ("sink_rejected", "prometheus")
    assert "a run can have 500 names" in error["reason"]


def test_resumed_run_keeps_the_values_of_earlier_records(logs, tmp_path):
    options = {"system_interval_s": 0, "resume": True}
    with start(logs, {"textfile": str(tmp_path)}, **options) as run:
        run.log_validation({"loss": 0.25}, step=4)
        run.log_checkpoint("a.pt", step=4)
    with start(logs, {"textfile": str(tmp_path)}, **options) as run:
        run.log(train_loss=1.0, step=5)
        file = tmp_path / "tachograph-x.prom"
        page = wait_for(lambda: b"train_loss" in (text := file.read_bytes()) and text, "the file")
    found = samples(page)
    assert found['tachograph_metric{run="x",name="val_loss"}'] == 0.25
    assert found['tachograph_records_total{run="x",kind="checkpoint"}'] == 1
    assert found['tachograph_run_state{run="x",state="running"}'] == 1
    assert b"run_end_time" not in page


def test_port_in_use_is_an_error_that_names_the_remedy(logs, monkeypatch):
    monkeypatch.setattr(prometheus, "_BIND_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        message = f"cannot listen on port {port} of 127.0.0.1: Address already in use. Choose another one with `port`"
        with pytest.raises(ConfigError, match=re.escape(message)):
            build_sinks({"prometheus": {"port": port}})


def test_port_of_an_ending_attempt_is_waited_for():
    port = reserve_port()
    server = socket.create_server(("127.0.0.1", port))

    import threading

    start_s = time.monotonic()
    timer = threading.Timer(0.5, server.close)
    timer.start()
    (sink,) = build_sinks({"prometheus": {"port": port}})
    assert time.monotonic() - start_s >= 0.4
    sink.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 0}, "port must be a number from 1 to 65535, got 0"),
        ({"port": "x"}, "port must be a number from 1 to 65535, got 'x'"),
        ({"host": ""}, "host must be a non-empty string, got ''"),
        ({"textfile": "no/such/folder"}, "is not a folder; create the one that the node exporter reads"),
        ({"textfile": 7}, "textfile must be the path of a folder, got 7"),
    ],
)
def test_wrong_prometheus_options_fail_at_setup(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_sinks({"prometheus": options})
