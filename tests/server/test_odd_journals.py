"""Journals that are valid JSON but have odd values: no route may fail."""

from __future__ import annotations

import json
import random
import re
from urllib.parse import quote

import pytest

from tachograph.journal import RunFolder
from tachograph.records import KINDS
from tachograph.server._routes import ROUTES
from tests.store import START, step

# As JSON, because a journal may contain what our own encoder does not write.
ODD_VALUES = [
    "null", "true", "false", '"NaN"', '"Infinity"', '"-Infinity"', '"\\\\NaN"', '""', '"text"', '"\\u0000"', '"<b>"',
    "0", "-1", "-0.0", "1.5", "5e-324", "1.7e308", "-1.7e308", str(2**53), str(2**63), str(2**64 - 1), str(-(2**63)),
    "1" + "0" * 30, "1" + "0" * 400, "[]", "{}", "[[]]", '["NaN"]', "[null, 1]", '{"": ""}', '{"a": {"b": "NaN"}}',
    '[{"step": "NaN"}]', "[" * 200 + "]" * 200, '"' + "x" * 5_000 + '"',
]  # fmt: skip

# Every field that a reader looks at, with a usual value.
FIELDS = {
    "time": "1005.5", "global_step": "3", "epoch": "0.5", "name": '"control_ack"', "id": '"a"', "run_id": '"0123"',
    "run_name": '"r"', "config": '{"lr": 0.1}', "tags": '["a"]', "session_tag": '"s"', "perf_tag": '"p"',
    "resumed": "true", "max_steps": "10", "first_step": "0", "log_every": "1", "schema": "1", "git": '{"sha": "a"}',
    "host": '"h"', "hardware": '{"gpu": 1}', "gpu": '["g"]', "command": '["a"]', "world_size": "2",
    "process": '{"host": "h", "boot_id": "b", "pid": 1, "pid_started": 1}', "model": '{"a": 1}',
    "span_id": '"00aa"', "parent_id": '"00bb"', "parent_span_id": '"00bb"', "duration_s": "2.0", "status": '"opened"',
    "attributes": '{"train_iterations_start": 0, "train_iterations_target": 9}', "a": "1.0", "train_loss": "0.5",
    "sec_per_step": "0.1", "window/sec": "1.0", "window/iterations": "4", "window/share_forward": "0.5",
    "window/latest_loss": "0.5", "window/iteration_sec_mean": "0.1", "window_steps": "4", "a/mean": "1.0",
    "productive_train_iterations": "3", "productive_train_iterations_sec": "1.0", "total_iteration_time_sec": "1.0",
    "table": '"t"', "columns": '["prompt"]', "rows": '[{"prompt": "p", "reward": 1.0}]', "num_rows": "1",
    "control": '"lr"', "value": "1.0", "min": "0.1", "max": "2.0", "requested": "1.0", "wait_s": "1.0",
    "reason": '"r"', "old": "1.0", "new": "2.0", "source": '"cli"', "rule": '"loss_spike"', "severity": '"warning"',
    "title": '"t"', "message": '"m"', "meaning": '"m"', "advice": '["a"]', "evidence": '{"steps": [1, 2]}',
    "occurrence": '{"step": 3, "peak": 2.0}', "outcome": '"o"', "absorbed_by": '"b"', "path": '"traces/x.json.gz"',
    "size_bytes": "10", "num_steps": "2", "num_records": "5", "kind": '"records_lost"', "field": '"f"',
    "jump_s": "-3600.0", "clock_jumps_s": "1.0", "checkpoint_path": '"p"', "checkpoint_size": "10", "is_best": "true",
    "error_type": '"E"', "error_message": '"m"', "fatal": "true", "traceback": '"t"', "lines": '["l"]', "rank": "1",
    "exit_code": "1", "signal": "9", "ms": "[1.0, 0.1, 0.5, 0.1]", "last": "15", "n": "16", "seq": "3",
    "current_iteration": "3", "window_iteration_sec_mean": "0.1", "step": "3",
}  # fmt: skip
RULES = ["hang", "rank_hang", "rank_gone", "straggler"]
EVENT_NAMES = [
    "control_ack", "control_registered", "clock_set", "save_checkpoint_success", "training_metrics_update", "trace",
    "update_training_telemetry_config",
]  # fmt: skip
QUERIES = {
    "/api/v1/runs/{run}/series": [f"name=a&name=train_loss&x={x}" for x in ("step", "time", "relative", "epoch")],
    "/api/v1/runs/{run}/export": ["name=a&format=csv", "name=a&format=json&x=time&low=0", "name=train_loss&x=epoch"],
    "/api/v1/runs/{run}/spans": ["", "low=1000&high=1010", "points=16&most=1"],
    "/api/v1/runs/{run}/records": ["", "routine=true", "kind=NaN&kind=event&kind=step"],
    "/api/v1/runs/{run}/completions": ["", "search=p&step_min=0&table=t"],
}


def odd_line(chance, kind):
    """Return a record of a kind whose fields are usual, odd or missing."""
    fields = {"time": "1001.0"}
    for name, usual in FIELDS.items():
        match chance.randrange(6):
            case 0 | 1 | 2:
                fields[name] = usual
            case 3:
                fields[name] = chance.choice(ODD_VALUES)
            case 4:
                fields.pop(name, None)
    if kind == '"event"' and chance.random() < 0.7:
        fields["name"] = json.dumps(chance.choice(EVENT_NAMES))
    if kind == '"rank"' and chance.random() < 0.7:
        fields["max"] = "[2.0, 7]"
    if kind == '"alert"' and chance.random() < 0.5:
        fields["rule"] = json.dumps(chance.choice(RULES))
    inner = ", ".join(f"{json.dumps(name)}: {value}" for name, value in {"event": kind, **fields}.items())
    return "{" + inner + "}"


def odd_journal(seed):
    chance = random.Random(seed)
    kinds = [*(json.dumps(kind) for kind in KINDS), '"NaN"', '"Infinity"', '"\\\\NaN"', '""', '"odd kind"']
    start = [json.dumps(START)] if chance.random() < 0.7 else []
    steps = [json.dumps(step(number, a=1.0, train_loss=0.5)) for number in range(chance.choice([0, 20]))]
    odd = [odd_line(chance, chance.choice(kinds)) for _ in range(60)]
    # One odd field at a time, too: several at once may hide each other's effect.
    single = [
        json.dumps({**START, "event": kind})[:-1] + f", {json.dumps(name)}: {chance.choice(ODD_VALUES)}}}"
        for kind in KINDS
        for name in chance.sample(list(FIELDS), 4)
    ]
    chance.shuffle(single)
    return "\n".join([*start, *steps, *odd, *single]) + "\n"


def reject(text):
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_no_route_fails_for_an_odd_journal(tmp_path, serve, seed):
    for number in range(4):
        folder = RunFolder(tmp_path / f"odd-{number}")
        for rank in range(3):
            path = folder.rank_journal(rank) if rank else folder.journal
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(odd_journal(100 * rank + 10 * seed + number), encoding="utf-8")
    check_routes(tmp_path, serve)


@pytest.mark.parametrize("event", ['"NaN"', '"Infinity"', '"-Infinity"', '"\\\\NaN"', '""', '"\\u0000"'])
def test_odd_kind_of_record_stays_text(tmp_path, serve, event):
    (tmp_path / "odd").mkdir()
    line = f'{{"event": {event}, "time": 1.0, "a": "NaN"}}\n'
    (tmp_path / "odd" / "metrics.jsonl").write_text(json.dumps(START) + "\n" + line)
    check_routes(tmp_path, serve)


def check_routes(logs, serve):
    client = serve(logs).client
    failed = []
    runs = [path.name for path in logs.iterdir()]
    for route in ROUTES:
        if route.method != "GET":
            continue
        for run in runs if "{run}" in route.path else [""]:
            path = route.path.replace("{run}", run).replace("{span}", "00aa").replace("{trace}", "x.json.gz")
            for query in QUERIES.get(route.path, [""]):
                answer = client.get(f"{path}?{query}" if query else path)
                if answer.status_code >= 500:
                    failed.append((answer.status_code, f"{path}?{query}", answer.text[:200]))
                elif "json" in answer.headers["content-type"]:
                    for text in answer.text.splitlines() if "export" in path else [answer.text]:
                        json.loads(text, parse_constant=reject)
    with client.stream("GET", "/api/v1/live?run=" + quote(runs[0])) as live:
        assert live.status_code == 200
        assert re.match("event|data|:|id|retry", next(live.iter_lines()))
    assert failed == []
