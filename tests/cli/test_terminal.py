"""What others wrote drives no terminal: hostile texts in every place of a run, printed by every command."""

from __future__ import annotations

import ast
import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tachograph.cli import _terminal
from tachograph.cli._main import _MODULES, main
from tachograph.cli._options import complete_run
from tachograph.journal import RunFolder
from tests.store import END, START, step, write

HOSTILE = [
    *("\x1b[2J", "\x1b[31mred", "\x1b[1;1H", "\x1b[?1049h", "\x1b[6n", "\x1b[5i", "\x1b[8m", "\x1b[3g", "\x1bc"),
    *("\x1b7", "\x1b]0;title\x07", "\x1b]8;;http://evil\x1b\\link", "\x1b]52;c;ZXZpbA==\x07", "\x1b]1337;File=x\x07"),
    *("\x1bPq#0\x1b\\", "\x1b_x\x1b\\", "\x1b^x\x1b\\", "\x1bXx\x1b\\", "\x1b(0", "\x1b#8", "\x1b%G", "\x1b", "\x1b["),
    *("\x9b31m", "\x9d52;c;eA==\x9c", "\x90q\x9c", "\x9e", "\x9f", "\x98", "\x84", "\x85", "\x88", "\x8d", "\x80"),
    *("\x07", "\x08\x08", "\rgone", "\x0b", "\x0c", "\x0e", "\x0f", "\x11", "\x13", "\x1a", "\x7f", "\x05", "\x00"),
    *("\u202egnp", "\u202d", "\u2066", "\u2067", "\u2069", "\u200e", "\u200f", "\u061c", "\u200b", "\u200c"),
    *("\u2028", "\u2029", "\ufeff", "\u2060", "\u00ad", "\u180e", "\U000e0041", "\ufff9", "\ue000", "a\nError: b"),
    *("\x1f", "\u200d", "\x04", "\x8e"),
]
SURROGATES = ["\ud800", "\udfff", "\udc9b31m", "\udc1b"]
PARTS = ["".join(HOSTILE[first : first + 10]) for first in range(0, len(HOSTILE), 10)]

COMMANDS = {
    "ls": [
        *("", "--json", "--csv", "--columns config.{near}", "--sort {near}"),
        *("--group project", "{near}", "--view {near}"),
    ],
    "show": ["{run}", "{run} --json", "{near}"],
    "compare": ["{run} other", "{run} other --markdown", "{near} other"],
    "ab": ["{run}", "{near}"],
    "check": ["{run} --against other", "{near} --against {near}"],
    "baseline": ["add {run}", "show", "drop {run}", "drop {near}"],
    "diff": ["{run} other", "{run} other --json", "{run} {run} other", "{near} other"],
    "reproduce": ["{run}", "{run} --into {folder}", "{near}"],
    "origin": ["{folder}/model.pt", "{run}", "{near}"],
    "tail": ["{run}", "{run} --json", "{near}"],
    "logs": ["{run}", "{run} --json --time", "other", "{near}"],
    "export": ["{run}", "{run} --to jsonl", "{run} --metrics {near}", "{near}"],
    "import": ["csv {folder}/{text}.csv", "csv {folder}", "jsonl {near}"],
    "doctor": ["{run}", "{run} --json", "{near}"],
    "control": ["{run}", "{run} {text}=1", "{near}"],
    "sync": ["--status", "{run}", "{run} --sink {near}", "--server {text}"],
    "tag": ["{run}", "{run} +{text}", "{near} +x"],
    "note": ["{run} {text}", "{run}", "{near} x"],
    "rename": ["{run} {text}", "{near} x"],
    "group": ["{run} {text}", "{near} x"],
    "archive": ["{run}", "{near}"],
    "unarchive": ["{run}", "{near}"],
    "mv": ["{run} {text}/{text}", "{near} x"],
    "cp": ["{run} {folder}/{text}", "{near} x"],
    "du": ["", "{near}"],
    "media": ["{run}", "{run} {near} -o {near}.zip", "{near}"],
    "compact": ["{run}", "{near}"],
    "replay": ["{run} --config {near}", "{near} --config {near}"],
    "prune": ["--where {near}", "--where name:x --trash"],
    "notify": ["settings", "settings --config {folder}/{text}.yaml"],
    "logout": ["{text}"],
    "whoami": ["http://127.0.0.1:1/{text}"],
    "login": ["{text}"],
    "keys": [
        *("list --data {folder}", "revoke {text} --data {folder}"),
        "create --data {folder} --name {text} --scope {text}",
    ],
    "plugins": ["list", "show {text}", "check {folder}/{text}.yaml"],
    "usage": ["status {text}", "log {text}"],
    "store": ["verify --store {text}"],
    "grafana": ["{text}"],
    "train": ["{folder}/{text}.yaml"],
    "lm-eval": ["{folder}/{text}.yaml"],
    "run": ["--name {text}"],
    "serve": [
        *("--data {file}", "--data {folder} --check"),
        "--data {folder} --auth-header {text} --trusted-proxy {text}",
    ],
    "ui": ["--log-dir {file}", "--port {text}"],
    "demo": ["--{text}"],
    "rm": ["{near}", "{run} --yes"],
    "trash": ["list", "restore {near}"],
    "dump": ["list {run}", "show {run}", "show {run} {near}", "list {near}"],
    "artifact": ["ls", "ls {text}", "get {text}", "rm {text}", "verify {text}"],
    "audit": ["--data {folder}", "--data {folder} --since {text}"],
    "backup": ["--data {file} --to {folder}/{text}", "--data {folder} --to {folder}/{text}/x"],
    "restore": ["{file} --data {folder}/new"],
}

WITH_LINES = {"ls --csv", "note {run}", "reproduce {run}", "reproduce {run} --into {folder}"}
"""They print line breaks of a text as such."""


class Terminal(io.TextIOWrapper):
    """A terminal that remembers what was written to it."""

    class _Bytes(io.BytesIO):
        def isatty(self) -> bool:
            return True

    def __init__(self) -> None:
        super().__init__(self._Bytes(), encoding="utf-8", newline="\n")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


def run_command(*words: str) -> str:
    """Run a command in this process, as in a terminal that has no colors."""
    terminal = Terminal()
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal), pytest.raises(SystemExit):
        main.main(list(words), prog_name="tacho", color=False)
    return terminal.text()


def write_hostile_run(logs: Path, text: str) -> RunFolder:
    """Write a run that has a text in every place, also in the names of its folder and files."""
    name = "run-" + text.replace("\0", "").replace("/", "")
    everything = {text: text, "text": text, "list": [text], "nested": {text: {text: text}}}
    start: dict[str, Any] = {
        **START,
        "run_name": name,
        "config": everything,
        "tags": [text],
        "project": text,
        "group": text,
        "job_type": text,
        "command": ["python", text],
        "cwd": f"/{text}",
        "git": {"commit": text, "branch": text, "remote": text, "root": text, "dirty": True},
        "system": everything,
        "model": everything,
        "hostname": text,
    }
    code = {**everything, "command": [text], "git": {**start["git"], "commit": "a" * 40}}
    texts = {**everything, "name": text, "kind": text, "reason": text, "message": text}
    kinds = ["event", "telemetry_error", "log", "control_change", "profile", "completions", text]
    surrogates = "".join(f"\\u{ord(item[0]):04x}" for item in SURROGATES).encode()
    records: list[dict[str, Any] | bytes] = [
        start,
        {"event": "code", "time": 1_000.0, **code},
        *(step(number, train_loss=1.0, **{text: 1.0, f"metric {text}": 2.0}) for number in range(3)),
        *({"event": kind, "time": 1_010.0, **texts} for kind in kinds),
        {"event": "alert", "time": 1_011.0, "rule": text, "title": text, "severity": "critical", "message": text},
        {"event": "span", "time": 1_012.0, "name": text, "span_id": text, "duration_s": 1.0, "attributes": everything},
        {"event": "checkpoint", "time": 1_013.0, "global_step": 2, "path": text, "is_best": True},
        {"event": "error", "time": 1_014.0, "error_type": text, "error_message": text, "traceback": text},
        b'{"event":"log","time":1015.0,"message":"' + surrogates + b'"}',
        b"not JSON " + text.encode(),
        {**END, "status": "failed", "reason": text, text: text},
    ]
    folder = write(logs / name, records)
    verdict = {"kind": text, "text": text, "confidence": "certain", "details": {}}
    layers = {"layers": [{"name": text, "shape": [1], "weight": {"rms": 1.0, "absmax": 1.0}}]}
    dump = {"version": 1, "reason": "not_finite", "time": 1_016.0, "step": 2, "rank": 0, "alert_id": text}
    dump |= {"verdict": verdict, "parts": {"layers": layers}, "files": [], "problems": [text]}
    (folder.path / "dumps" / "1-not_finite").mkdir(parents=True)
    (folder.path / "dumps" / "1-not_finite" / "dump.json").write_bytes(msgspec.json.encode(dump))
    (folder.path / "output").mkdir()
    lines = [{"time": 1_000.0, "stream": "stderr", "text": text}, {"time": 1_000.0, "stream": "stdout", "text": text}]
    (folder.path / "output" / "000000000000.log").write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    return folder


@pytest.mark.expects_faults
@pytest.mark.slow
def test_hostile_texts_are_escaped_by_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert set(COMMANDS) == set(_MODULES)
    logs, config = tmp_path / "logs", tmp_path / "config"
    variables = {"TERM": "dumb", "COLUMNS": "200", "TACHO_LOG_DIR": logs, "XDG_CONFIG_HOME": config}
    for name, value in {**variables, "XDG_STATE_HOME": config}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    write(logs / "other", [START, step(0, train_loss=1.0), END])
    problems, num_commands = {}, 0
    for number, text in enumerate(PARTS):
        folder = write_hostile_run(logs, text)
        places = tmp_path / f"place {number}"
        places.mkdir()
        file = places / folder.name
        file.write_text(f"{text},b\n{text},1\n")
        fields = {"run": folder.name, "near": folder.name[:-1], "text": folder.name[4:]}
        fields |= {"folder": str(places), "file": str(file)}
        for command, forms in COMMANDS.items():
            for form in forms:
                words = [word.format(**fields) for word in form.split()]
                text_shown = run_command(command, *words)
                num_commands += 1
                rest = {character for character in text_shown if not character.isprintable()} - {"\n", "\t"}
                has_lines = f"{command} {form}" in WITH_LINES
                if rest or ("\nError: b" in text_shown and not has_lines):
                    problems[f"{command} {form}"] = (rest, text_shown)
    assert not problems
    names = [item.value for item in complete_run(main.make_context("tacho", ["ls"]), main.params[0], "")]
    assert names == ["other"]
    assert num_commands > 500


def test_other_output_is_escaped(monkeypatch: pytest.MonkeyPatch):
    text = "".join([*HOSTILE, *SURROGATES])
    terminal = Terminal()
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        _terminal.echo(text)
        _terminal.echo_data(text)
        _terminal.print_exception(OSError, OSError(2, text, text), None)
        handler = logging.StreamHandler()
        handler.setFormatter(_terminal.SafeFormatter())
        handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, "%s", (text,), None))
    assert {character for character in terminal.text() if not character.isprintable()} == {"\n"}
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape", newline="")
    with contextlib.redirect_stdout(stream):
        _terminal.echo_data("a\r\n\x1b")
        stream.flush()
    assert stream.buffer.getvalue() == b"a\r\n\x1b"  # type: ignore[attr-defined]


def test_commands_print_only_with_functions_that_escape():
    """Also `Console` of rich prints control characters."""
    allowed = {"_terminal.py": {"click.echo", "click.style"}, "_format.py": set()}
    forbidden = {"click.echo", "click.secho", "click.style", "Console", "print", "sys.stdout.write", "sys.stderr.write"}
    for path in sorted(Path(_terminal.__file__).parent.glob("*.py")):
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
        assert calls & forbidden <= allowed.get(path.name, set()), path.name
