"""The keys of a user: private files, precedence, and no key in any text."""

from __future__ import annotations

import json
import logging
import os
import stat

import pytest

from tachograph.exceptions import ConfigError
from tachograph.remote import (
    Credential,
    credentials_path,
    find_credential,
    parse_server,
    remove_token,
    store_token,
    stored_servers,
)
from tests.conftest import read_files

SERVER = parse_server("https://tacho.example.org")
OTHER = parse_server("https://tacho.example.org:8443/team")
TOKEN = f"tk_0123abcd_{'Canary-7_' * 4}Canary7"
OTHER_TOKEN = f"tk_89abcdef_{'Magpie-3_' * 4}Magpie3"


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def token_for(server):
    found = find_credential(server)
    return found and found.token


def test_keys_are_stored_by_server(config_home):
    assert (find_credential(SERVER), stored_servers()) == (None, [])
    assert not config_home.exists()
    path = store_token(SERVER, f" {TOKEN}\n")
    store_token(OTHER, OTHER_TOKEN)
    assert path == credentials_path() == config_home / "tachograph" / "credentials.json"
    assert (token_for(SERVER), token_for(OTHER)) == (TOKEN, OTHER_TOKEN)
    assert find_credential(SERVER).source == str(path)
    assert stored_servers() == [SERVER.url, OTHER.url]
    assert token_for(parse_server("https://TACHO.example.org:443/")) == TOKEN
    assert token_for(parse_server("http://tacho.example.org", allow_plain_http=True)) is None


def test_new_key_replaces_the_old_one():
    store_token(SERVER, TOKEN)
    store_token(SERVER, OTHER_TOKEN)
    assert token_for(SERVER) == OTHER_TOKEN
    assert TOKEN not in credentials_path().read_text()


def test_key_is_removed():
    store_token(SERVER, TOKEN)
    store_token(OTHER, OTHER_TOKEN)
    assert [remove_token(SERVER), remove_token(SERVER)] == [True, False]
    assert (token_for(SERVER), token_for(OTHER)) == (None, OTHER_TOKEN)
    assert TOKEN not in credentials_path().read_text()


def test_file_is_private_whatever_the_umask():
    before = os.umask(0)
    try:
        store_token(SERVER, TOKEN)
    finally:
        os.umask(before)
    assert [mode_of(path) for path in credentials_path().parent.iterdir()] == [0o600, 0o600]
    assert mode_of(credentials_path().parent) == 0o700


def test_readable_file_is_reported_and_made_private(caplog):
    path = store_token(SERVER, TOKEN)
    path.chmod(0o640)
    with caplog.at_level(logging.WARNING, "tachograph"):
        assert token_for(SERVER) == TOKEN
    assert f"chmod 600 {path}" in caplog.text
    assert TOKEN[12:] not in caplog.text
    caplog.clear()
    store_token(SERVER, TOKEN)
    assert (mode_of(path), token_for(SERVER), caplog.text) == (0o600, TOKEN, "")


def test_variable_has_precedence(monkeypatch):
    store_token(SERVER, TOKEN)
    monkeypatch.setenv("TACHO_API_KEY", f"{OTHER_TOKEN}\n")
    assert find_credential(SERVER) == find_credential(OTHER) == Credential(OTHER_TOKEN, "TACHO_API_KEY")
    monkeypatch.setenv("TACHO_API_KEY", "")
    assert token_for(SERVER) == TOKEN


@pytest.mark.parametrize(
    "text", [" ", TOKEN[:-1], TOKEN + "x", TOKEN.replace("tk_", "sk_"), f"{TOKEN} {TOKEN}", "hunter2"]
)
def test_invalid_key_is_refused_without_showing_it(monkeypatch, text):
    monkeypatch.setenv("TACHO_API_KEY", text)
    with pytest.raises(ConfigError, match="TACHO_API_KEY is (empty|not an access key): expected tk_") as caught:
        find_credential(SERVER)
    with pytest.raises(ConfigError, match="the key is (empty|not an access key)") as stored:
        store_token(SERVER, text)
    assert not {"Canary", "hunter2"} & set(f"{caught.value} {stored.value}".replace("-", " ").split())
    assert not credentials_path().exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        f'["{TOKEN}"]',
        f'{{"version": 2, "servers": {{"https://tacho.example.org": "{TOKEN}"}}}}',
        f'{{"servers": {{"https://tacho.example.org": ["{TOKEN}"]}}}}',
        f'{{"{TOKEN}": 1}}',
        " " * (2 << 20),
    ],
    ids=range(7),
)
def test_damaged_file_is_kept_and_reported_without_keys(content):
    path = store_token(SERVER, TOKEN)
    path.write_text(content)
    for call in (lambda: find_credential(SERVER), stored_servers, lambda: store_token(OTHER, TOKEN)):
        with pytest.raises(ConfigError, match="remove it and run tacho login again") as caught:
            call()
        assert "Canary" not in str(caught.value)
    assert path.read_text() == content


def test_stored_text_that_is_no_key_is_not_sent():
    path = store_token(SERVER, TOKEN)
    path.write_text(json.dumps({"version": 1, "servers": {SERVER.url: "hunter2\r\nX-Evil: 1"}}))
    with pytest.raises(ConfigError, match=f"the key for {SERVER} in .* is not an access key") as caught:
        find_credential(SERVER)
    assert "hunter2" not in str(caught.value)


def test_link_in_place_of_the_file_is_refused(tmp_path):
    path = store_token(SERVER, TOKEN)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="symbolic link"):
        find_credential(SERVER)


def test_folder_that_cannot_be_made_is_named(config_home):
    config_home.write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot write .*credentials\.json: "):
        store_token(SERVER, TOKEN)


def test_texts_do_not_show_the_key():
    store_token(SERVER, TOKEN)
    found = find_credential(SERVER)
    assert "Canary" not in f"{found} {found!r}"


def test_processes_that_log_in_at_once_lose_no_key(script):
    code = """
        import sys
        from tachograph.remote import parse_server, store_token
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(20):
            store_token(parse_server(f"https://{sys.argv[1]}-{number}.example.org"), sys.argv[2])
    """
    writers = [script(code, name, TOKEN) for name in ("a", "b")]
    for writer in writers:
        assert writer.process.stdout.readline() == "ready\n"
    for writer in writers:
        writer.process.stdin.write("go\n")
        writer.process.stdin.flush()
    for writer in writers:
        writer.ok()
    assert len(stored_servers()) == 40


def test_key_of_the_environment_is_in_no_file_of_a_run(script, logs):
    """With everything that is recorded of a program: arguments, config, texts, errors, code and environment."""
    code = """
        import os, sys, tachograph
        token = os.environ["TACHO_API_KEY"]
        run = tachograph.init("x", log_dir=sys.argv[1], code=True, console=False, config={**os.environ, "note": token})
        run.log(loss=1.0, text=f"sent with {token}")
        run.event("sent", header=f"Authorization: Bearer {token}", key=token)
        raise RuntimeError(f"401 for {token}")
    """
    program = script(code, logs, TOKEN, f"--key={TOKEN}", env={"TACHO_API_KEY": TOKEN})
    assert program.wait()[0] == 1
    contents = read_files(logs)
    assert any(b"[masked]" in data for data in contents.values())
    assert [path.name for path, data in contents.items() if b"Canary" in data] == []
