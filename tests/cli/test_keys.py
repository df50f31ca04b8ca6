"""`tacho keys`, as a child process with real key files."""

from __future__ import annotations

import json
import re
import shlex
import stat
from pathlib import Path

import pytest

from tachograph.server.team import KeyRing, keys_path
from tests.cli.test_cli import tacho


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def create(data, name, scope, *options):
    return tacho("keys", "create", "--name", name, "--scope", scope, "--data", data, *options).strip()


def listed(data):
    return json.loads(tacho("keys", "list", "--data", data, "--json"))


def failure_of(*arguments):
    done = tacho("keys", *arguments, check=False)
    assert done.returncode != 0, done.stdout
    assert (done.stdout, "Traceback" in done.stderr) == ("", False)
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.stderr).split())


def test_create_prints_only_the_token_on_stdout(data):
    done = tacho("keys", "create", "--name", "ci", "--scope", "write,read", "--project", "vision", "--expires", "90d",
                 "--data", data, check=False)  # fmt: skip
    assert re.fullmatch(r"tk_[0-9a-f]{8}_[\w-]{43}\n", done.stdout)
    token = done.stdout.strip()
    assert "created the key ci (id " in done.stderr
    assert "not shown again" in done.stderr
    assert token[12:] not in done.stderr
    key = KeyRing(keys_path(data)).check(token)
    assert (key.name, key.scopes, key.project) == ("ci", {"read", "write"}, "vision")
    assert key.expires - key.created == 90 * 86_400
    assert stat.S_IMODE(keys_path(data).stat().st_mode) == 0o600


def test_scopes_can_be_repeated_and_limits_given(data):
    create(data, "ci", "write", "--scope", " read,", "--max-bytes-per-s", "1000000", "--max-bytes", "5000000000",
           "--max-open-runs", "1")  # fmt: skip
    (key,) = listed(data)
    assert key["scopes"] == ["write", "read"]
    assert (key["max_bytes_per_s"], key["max_bytes"], key["max_open_runs"]) == (10**6, 5 * 10**9, 1)
    assert "1.0 MB/s, 5.0 GB, 1 open run" in tacho("keys", "list", "--data", data)


def test_list_shows_state_and_use_but_no_secret(data):
    assert f"no access keys in {keys_path(data)}." in tacho("keys", "list", "--data", data)
    assert listed(data) == []
    tokens = [
        create(data, "ci", "write", "--project", "vision"),
        create(data, "old", "admin"),
        create(data, "x", "read"),
    ]
    tacho("keys", "revoke", "old", "--data", data)
    KeyRing(keys_path(data)).check(tokens[0])
    text, values = tacho("keys", "list", "--data", data), listed(data)
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert re.search(r"write +vision +valid +\d+ s ago", rows["ci"])
    assert re.search(r"admin +all +revoked \d{4}-\d\d-\d\d \d\d:\d\d +never", rows["old"])
    assert [(key["name"], key["is_valid"], key["last_used"] is None) for key in values] == [
        ("ci", True, False),
        ("old", False, True),
        ("x", True, True),
    ]
    for token in tokens:
        assert token[3:11] in text
        assert token[12:24] not in text + json.dumps(values)


def test_revoked_key_is_refused(data):
    token = create(data, "ci", "write")
    assert tacho("keys", "revoke", "ci", "--data", data) == f"revoked the key ci (id {token[3:11]})\n"
    assert KeyRing(keys_path(data)).check(token) is None
    assert "'ci' is revoked or expired already" in failure_of("revoke", "ci", "--data", data)


def test_key_is_revoked_by_the_whole_token(data):
    token = create(data, "ci", "write")
    assert token[12:] not in tacho("keys", "revoke", token, "--data", data)
    assert KeyRing(keys_path(data)).check(token) is None


def test_rotate_prints_a_second_valid_token(data):
    old = create(data, "ci", "write")
    done = tacho("keys", "rotate", "ci", "--data", data, check=False)
    new = done.stdout.strip()
    assert f"the old key (id {old[3:11]}) is valid for another 1d" in done.stderr
    ring = KeyRing(keys_path(data))
    assert [ring.check(token).id for token in (old, new)] == [old[3:11], new[3:11]]
    last = tacho("keys", "rotate", "ci", "--overlap", "0s", "--data", data).strip()
    ring = KeyRing(keys_path(data))
    assert [ring.check(token) is not None for token in (old, new, last)] == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--name", "x", "--scope", "wirte"), "unknown scope 'wirte'; did you mean 'write'? The scopes are write"),
        (("--name", "x", "--scope", ","), "at least one scope: write (send runs), read"),
        (("--name", "x"), "--scope"),
        (("--scope", "read"), "--name"),
        (("--name", "a b", "--scope", "read"), "'a b' cannot name an access key"),
        (("--name", "x", "--scope", "read", "--expires", "soon"), "--expires 'soon': expected a number with s, m"),
        (("--name", "x", "--scope", "read", "--expires", "0d"), "cannot expire after 0"),
        (("--name", "x", "--scope", "read", "--max-bytes", "0"), "--max-bytes"),
        (("--name", "x", "--scope", "read", "--project", ""), "cannot be the project"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(data, arguments, message):
    assert message in failure_of("create", *arguments, "--data", data)
    assert not keys_path(data).exists()


def test_unknown_key_is_named(data):
    assert "no access keys in" in failure_of("revoke", "ci", "--data", data)
    assert not data.exists()
    create(data, "cluster", "write")
    assert "did you mean 'cluster'?" in failure_of("revoke", "clustr", "--data", data)
    assert "a valid access key named 'cluster'" in failure_of(
        "create", "--name", "cluster", "--scope", "read", "--data", data
    )


def test_damaged_file_is_reported(data):
    token = create(data, "ci", "write")
    keys_path(data).write_text("{")
    for command in (("list",), ("revoke", "ci"), ("rotate", "ci"), ("create", "--name", "x", "--scope", "read")):
        message = failure_of(*command, "--data", data)
        assert "is damaged, so no access key is accepted" in message
        assert token[12:] not in message


def test_data_folder_that_is_a_file_is_named(data):
    data.write_text("x")
    assert "is a file" in failure_of("list", "--data", data)


def test_commands_of_the_documentation_work(data):
    page = Path(__file__).parents[2] / "docs" / "keys.md"
    commands = re.findall(r"^\$ tacho (keys .*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        tacho(*shlex.split(command.replace("/srv/tacho", str(data))))
    assert [key["name"] for key in listed(data)] == ["ci", "anna@laptop", "ci"]
