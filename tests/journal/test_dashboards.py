"""A run that starts prints the address of its page in a dashboard that is running."""

from __future__ import annotations

import tachograph
from tachograph.journal import announce_dashboard, page_of_run
from tests.conftest import wait_for


def start_run(name, log_dir, capfd, **settings):
    with tachograph.init(name, log_dir=str(log_dir), **settings):
        pass
    return "".join(capfd.readouterr())


def test_run_prints_its_page_in_a_running_dashboard(logs, capfd):
    logs.mkdir(exist_ok=True)
    with announce_dashboard("http://127.0.0.1:8501/#token=secret", [logs]):
        assert "Watch it at: http://127.0.0.1:8501/#/run/a%20b\n" in start_run("a b", logs, capfd)
        assert "#/run/deep%2Fx\n" in start_run("x", logs / "deep", capfd)
        assert start_run("quiet", logs, capfd, console=False) == ""
        assert page_of_run(logs.parent / "elsewhere" / "x") is None
    assert page_of_run(logs / "a b") is None
    assert "Watch it with: tacho ui" in start_run("later", logs / "other", capfd)


def test_dashboard_that_was_killed_is_forgotten(logs, script):
    dashboard = script(
        f"""
        import time
        from tachograph.journal import announce_dashboard
        with announce_dashboard("http://127.0.0.1:8501/", [{str(logs)!r}, "more"]):
            time.sleep(600)
        """
    )
    wait_for(lambda: page_of_run(logs / "x") == "http://127.0.0.1:8501/", "the dashboard")
    dashboard.process.kill()
    dashboard.wait()
    assert page_of_run(logs / "x") is None
