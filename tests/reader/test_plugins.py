"""Training plugins of a run, as readers and `tacho show` report them."""

from __future__ import annotations

from click.testing import CliRunner

import tachograph
from tachograph.cli._main import main
from tachograph.records import encode


def write_journal(logs, name, records):
    (logs / name).mkdir(parents=True)
    content = b"".join(encode(record) + b"\n" for record in records)
    (logs / name / "metrics.jsonl").write_bytes(content)


def test_latest_event_of_each_plugin_counts(logs):
    event = {"event": "event", "name": "plugin", "plugin": "kd", "class": "a.KD", "time": 2.0}
    records = [
        {"event": "start", "time": 1.0, "run_name": "run"},
        {**event, "changes": {"modules patched": {"count": 3, "names": ["a", "b"]}}, "hook_ms": {"register": 1.0}},
        {
            **event,
            "plugin": "odd",
            "slots": 7,
            "options": [],
            "changes": {"x": None, "y": {"count": "?"}},
            "hook_ms": 1,
        },
        {
            "event": "event",
            "name": "plugin_summary",
            "plugin": "kd",
            "hook_ms": {"register": 5.0},
            "effects": 9,
            "time": 3.0,
        },
        {"event": "event", "name": "plugin_summary", "plugin": "unknown", "time": 3.0},
        {"event": "step", "global_step": 1, "plugin/kd/active": 0.0, "time": 4.0},
    ]
    write_journal(logs, "run", records)
    kd, odd = tachograph.read("run", str(logs)).plugins
    assert (kd.name, kd.path, kd.hook_ms, kd.num_effects) == ("kd", "a.KD", {"register": 5.0}, 9)
    assert [(change.what, change.count, change.names) for change in kd.changes] == [("modules patched", 3, ["a", "b"])]
    assert (odd.slots, odd.options, odd.hook_ms) == ([], {}, {})
    assert [(change.what, change.count) for change in odd.changes] == [("y", 0)]


def test_show_lists_plugins(logs):
    records = [
        {"event": "start", "time": 1.0, "run_name": "run"},
        {"event": "event", "name": "plugin", "plugin": "kd", "contributes": ["the loss"], "time": 2.0},
        {"event": "step", "global_step": 1, "plugin/kd/active": 0.0, "time": 4.0},
    ]
    write_journal(logs, "run", records)
    result = CliRunner().invoke(main, ["show", "run", "--log-dir", str(logs)])
    (line,) = [line for line in result.output.splitlines() if "the loss" in line]
    assert line.split()[:2] == ["kd", "no"]
