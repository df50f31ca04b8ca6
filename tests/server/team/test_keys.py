"""Access keys: real files, several processes, a fake clock for expiry, and no secret outside of the token."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import threading
from pathlib import Path

import pytest

from tachograph.exceptions import ConfigError
from tachograph.server import SCOPES
from tachograph.server.team import FailureLimiter, KeyFileError, KeyRing, keys_path
from tachograph.testing import FakeClock
from tests.conftest import wait_for

DAY_S = 86_400.0


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def ring(tmp_path, clock):
    return KeyRing(keys_path(tmp_path / "data"), clock=clock)


def later(ring, clock, seconds=1.0):
    """Return another reader of the same file, after some time."""
    clock.advance(seconds)
    return KeyRing(ring.path, clock=clock)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


# Tokens --------------------------------------------------------------------------------------------------------------


def test_token_admits_its_key(ring):
    key, token = ring.create("ci", ["write", "read"], project="vision")
    assert re.fullmatch(r"tk_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", token)
    found = ring.check(token)
    assert found == key
    assert (found.id, found.name, found.scopes, found.project) == (token[3:11], "ci", {"write", "read"}, "vision")
    assert [found.allows(scope) for scope in SCOPES] == [True, True, False, False]
    assert [found.allows_project(project) for project in ("vision", "text", None)] == [True, False, False]


def test_admin_has_every_scope_and_project(ring):
    key, _ = ring.create("root", ["admin"])
    assert all(map(key.allows, SCOPES))
    assert key.allows_project("anything") and key.allows_project(None)


def test_wrong_tokens_are_rejected(ring):
    key, token = ring.create("ci", ["write"])
    other_key, other = ring.create("other", ["admin"])
    swapped = f"tk_{key.id}_{other[12:]}"
    last = "A" if token[-1] != "A" else "B"
    wrong_tokens = ["", "tk_", "ci", key.id, token[:-1], token[:-1] + last, token + "A", token.upper(), swapped]
    wrong_tokens += [f" {token}", f"{token}\n", f"Bearer {token}", f"tk_{'0' * 8}_{token[12:]}", "tk_é" + token[4:]]
    for wrong in [*wrong_tokens, "x" * 100_000]:
        assert ring.check(wrong) is None, wrong
    assert ring.check(other) == other_key


def test_no_file_admits_nobody(ring, clock):
    assert ring.check(f"tk_{'0' * 8}_{'A' * 43}") is None
    assert ring.list() == []
    assert not ring.path.parent.exists()
    _, token = later(ring, clock).create("ci", ["write"])
    clock.advance(0.6)
    assert ring.check(token) is not None


def test_secrets_are_all_different(ring):
    tokens = [ring.create(f"key-{number}", ["read"])[1] for number in range(50)]
    assert len({token[12:] for token in tokens}) == len({token[3:11] for token in tokens}) == 50


# Secrets and files ---------------------------------------------------------------------------------------------------


def test_secret_is_in_no_file_listing_or_error(ring, clock, tmp_path):
    key, token = ring.create("ci", ["write"], project="vision", max_bytes=10**9)
    new, new_token = ring.rotate("ci")
    ring.check(token)
    errors = []
    for call in (
        lambda: ring.create(token, ["read"]),
        lambda: ring.create("x", [token]),
        lambda: ring.rotate(f"{token}x"),
        lambda: ring.revoke(f"{token}x"),
        lambda: ring.rotate(token),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        errors.append(str(caught.value))
    ring.revoke(new_token)
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    texts += [repr(ring.list()), repr(key), repr(new), *errors, repr(vars(ring))]
    for secret in (token[12:], new_token[12:]):
        assert not any(secret[:12] in text for text in texts)
    assert any(new.id in text for text in texts)


def test_files_are_private_whatever_the_umask(ring):
    before = os.umask(0)
    try:
        _, token = ring.create("ci", ["write"])
        ring.check(token)
    finally:
        os.umask(before)
    files = sorted(ring.path.parent.iterdir())
    assert [(file.name, mode_of(file)) for file in files] == [
        ("audit.jsonl", 0o600),
        ("audit.lock", 0o600),
        ("keys.json", 0o600),
        ("keys.lock", 0o600),
        ("last_used.json", 0o600),
    ]
    assert mode_of(ring.path.parent) == 0o700


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"version": 1}',
        b'{"version": 2, "keys": []}',
        b'{"version": 1, "keys": {}}',
        b'{"version": 1, "keys": [], "more": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * (5 << 20),
    ],
    ids=lambda content: repr(content[:40]),
)
def test_damaged_file_refuses_every_token(ring, clock, content):
    _, token = ring.create("ci", ["admin"])
    good = ring.path.read_bytes()
    assert ring.check(token) is not None
    ring.path.write_bytes(content)
    for reader in (later(ring, clock), ring):
        for _ in range(2):
            with pytest.raises(KeyFileError, match=r"keys\.json is damaged, so no access key is accepted"):
                reader.check(token)
    for call in (ring.list, lambda: ring.create("x", ["read"]), lambda: ring.revoke("ci"), lambda: ring.rotate("ci")):
        with pytest.raises(KeyFileError, match="damaged"):
            call()
    assert ring.path.read_bytes() == content
    ring.path.write_bytes(good)
    clock.advance(0.6)
    assert ring.check(token) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "0" * 63},
        {"sha256": ""},
        {"sha256": None},
        {"id": "x"},
        {"scopes": ["everything"]},
        {"expires": "never"},
        {"revoked": "no"},
        {"expires_at": 1.0},
    ],
    ids=str,
)
def test_damaged_entry_refuses_every_token(ring, clock, change):
    """Also the tokens of other keys: an entry that cannot be read may be a revocation."""
    ring.create("ci", ["write"])
    _, token = ring.create("other", ["read"])
    content = json.loads(ring.path.read_text())
    entry = content["keys"][0]
    (entry if "sha256" in change else entry["key"]).update(change)
    ring.path.write_text(json.dumps(content))
    with pytest.raises(KeyFileError, match="damaged"):
        later(ring, clock).check(token)


def test_repeated_id_refuses_every_token(ring, clock):
    _, token = ring.create("ci", ["write"])
    content = json.loads(ring.path.read_text())
    content["keys"] *= 2
    ring.path.write_text(json.dumps(content))
    with pytest.raises(KeyFileError, match="repeated"):
        later(ring, clock).check(token)


def test_files_that_others_can_change_are_refused(ring, clock):
    _, token = ring.create("ci", ["write"])
    for path, mode, remedy in ((ring.path, 0o620, "chmod 600"), (ring.path.parent, 0o777, "chmod 700")):
        before = mode_of(path)
        path.chmod(mode)
        with pytest.raises(KeyFileError, match=f"other users can change {path}.*{remedy}"):
            later(ring, clock).check(token)
        path.chmod(before)
    assert later(ring, clock).check(token) is not None


def test_links_are_refused(ring, clock, tmp_path):
    _, token = ring.create("ci", ["write"])
    elsewhere = tmp_path / "elsewhere.json"
    ring.path.rename(elsewhere)
    ring.path.symlink_to(elsewhere)
    with pytest.raises(KeyFileError, match="symbolic link"):
        later(ring, clock).check(token)
    ring.path.unlink()
    os.link(elsewhere, ring.path)
    with pytest.raises(KeyFileError, match="second name"):
        later(ring, clock).check(token)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_keys_of_another_user_are_refused(open_folder, script):
    code = """
        import os, sys
        from tachograph.server.team import KeyRing, KeyFileError, keys_path
        os.setuid(65534)
        ring = KeyRing(keys_path(sys.argv[1]))
        for call in (lambda: ring.check(sys.argv[2]), lambda: ring.create("x", ["admin"])):
            try:
                print("admitted", call())
            except KeyFileError as error:
                print(error)
    """
    _, token = KeyRing(keys_path(open_folder)).create("ci", ["write"])
    out = script(code, open_folder, token).ok().splitlines()
    assert len(out) == 2
    assert all("as the user that runs the server" in line for line in out), out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_first_key_of_another_user_is_reported(open_folder, script):
    """As with `sudo tacho keys create` next to a server that had no keys."""
    code = """
        import os, sys
        from tachograph.server.team import KeyRing, KeyFileError, keys_path
        os.setuid(65534)
        ring = KeyRing(keys_path(sys.argv[1]))
        for token in sys.stdin:
            try:
                print(ring.check(token.strip()), flush=True)
            except KeyFileError as error:
                print(error, flush=True)
    """
    server = script(code, open_folder)

    def ask(token):
        server.process.stdin.write(f"{token}\n")
        server.process.stdin.flush()
        return server.process.stdout.readline()

    assert ask("tk_") == "None\n"
    _, token = KeyRing(keys_path(open_folder)).create("ci", ["write"])
    wait_for(lambda: "as the user that runs the server" in ask(token), "the error")


# Expiry, revocation, rotation ----------------------------------------------------------------------------------------


def test_key_expires(ring, clock):
    _, token = ring.create("ci", ["write"], lifetime_s=90 * DAY_S)
    clock.advance(90 * DAY_S - 1)
    assert ring.check(token) is not None
    clock.advance(1)
    assert ring.check(token) is None
    assert len(ring.list()) == 1


def test_revoked_key_is_refused_within_a_second(ring, clock):
    key, token = ring.create("ci", ["write"])
    other, other_token = ring.create("other", ["write"])
    assert ring.check(token) == key
    (revoked,) = KeyRing(ring.path, clock=clock).revoke("ci")
    assert (revoked.id, revoked.revoked) == (key.id, clock.wall_s())
    clock.advance(0.5)
    assert ring.check(token) is None
    assert ring.check(other_token) == other


@pytest.mark.parametrize("form", ["id", "name", "token"])
def test_key_is_revoked_by_id_name_or_token(ring, clock, form):
    key, token = ring.create("ci", ["write"])
    ring.revoke({"id": key.id, "name": "ci", "token": token}[form])
    assert later(ring, clock).check(token) is None


def test_revoked_name_can_be_used_again(ring, clock):
    _, old = ring.create("ci", ["write"])
    with pytest.raises(ConfigError, match=r"valid access key named 'ci'.*tacho keys rotate ci"):
        ring.create("ci", ["write"])
    ring.revoke("ci")
    with pytest.raises(ConfigError, match="'ci' is revoked or expired already"):
        ring.revoke("ci")
    _, new = ring.create("ci", ["write"])
    assert later(ring, clock).check(old) is None
    assert ring.check(new) is not None


def test_unknown_key_is_named_with_a_hint(ring):
    ring.create("cluster", ["write"])
    with pytest.raises(ConfigError, match=r"no access key with the name or id 'clutser'; did you mean 'cluster'\?"):
        ring.revoke("clutser")
    with pytest.raises(ConfigError, match="no access key with the name or id 'deadbeef'; see tacho keys list"):
        ring.rotate("deadbeef")


def test_rotation_keeps_both_tokens_for_a_day(ring, clock):
    old, old_token = ring.create("ci", ["write", "read"], project="vision", max_bytes_per_s=1000)
    new, new_token = ring.rotate("ci")
    assert (new.name, new.scopes, new.project, new.max_bytes_per_s) == ("ci", old.scopes, "vision", 1000)
    assert (new.rotated_from, new.expires) == (old.id, None)
    assert later(ring, clock, DAY_S - 1).check(old_token).id == old.id
    assert ring.check(new_token) == new
    assert later(ring, clock).check(old_token) is None
    assert ring.check(new_token) == new


def test_rotation_without_overlap_ends_the_old_key(ring, clock):
    _, old = ring.create("ci", ["write"])
    _, new = ring.rotate("ci", overlap_s=0)
    assert later(ring, clock).check(old) is None
    assert ring.check(new) is not None


def test_rotated_key_is_valid_as_long_as_the_old_one_was(ring, clock):
    ring.create("ci", ["write"], lifetime_s=10 * DAY_S)
    clock.advance(9.5 * DAY_S)
    new, _ = ring.rotate("ci")
    old = ring.list()[0]
    assert new.expires == clock.wall_s() + 10 * DAY_S
    assert old.expires == clock.wall_s() + 0.5 * DAY_S  # not longer than before


def test_rotation_by_name_takes_the_newest_key(ring):
    first, _ = ring.create("ci", ["write"])
    second, _ = ring.rotate("ci")
    third, _ = ring.rotate("ci")
    assert (second.rotated_from, third.rotated_from) == (first.id, second.id)
    with pytest.raises(ConfigError, match=f"{first.id} was rotated before; rotate its successor {second.id}"):
        ring.rotate(first.id)


def test_revoking_a_name_revokes_both_keys_of_a_rotation(ring, clock):
    _, old = ring.create("ci", ["write"])
    _, new = ring.rotate("ci")
    assert len(ring.revoke("ci")) == 2
    reader = later(ring, clock)
    assert [reader.check(old), reader.check(new)] == [None, None]


def test_ended_keys_are_removed_after_90_days(ring, clock):
    ring.create("old", ["read"])
    ring.revoke("old")
    ring.create("expired", ["read"], lifetime_s=DAY_S)
    clock.advance(90 * DAY_S)
    ring.create("a", ["read"])
    assert [key.name for key in ring.list()] == ["old", "expired", "a"]
    clock.advance(2 * DAY_S)
    ring.create("b", ["read"])
    assert [key.name for key in ring.list()] == ["a", "b"]


def test_number_of_keys_is_limited(ring):
    for number in range(3):
        ring.create(f"key-{number}", ["read"])
    ring.revoke("key-0")
    content = json.loads(ring.path.read_text())
    revoked, valid = content["keys"][0], content["keys"][1]
    for number in range(1_500):  # real ones would take long
        for entry in (revoked, valid) if number < 998 else (revoked,):
            name = f"more-{number}-{entry is valid}"
            content["keys"].append(
                {**entry, "key": {**entry["key"], "id": f"{len(content['keys']):08x}", "name": name}}
            )
    ring.path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="1000 valid access keys, which is the limit"):
        ring.create("one-more", ["read"])
    ring.revoke("key-1")
    ring.create("one-more", ["read"])
    assert (
        sum(key.revoked is None for key in ring.list()) == sum(key.revoked is not None for key in ring.list()) == 1000
    )


@pytest.mark.parametrize("call", ["revoke", "rotate"])
def test_change_of_missing_keys_creates_nothing(ring, call):
    with pytest.raises(ConfigError, match="no access keys in .*; create one with tacho keys create"):
        getattr(ring, call)("ci")
    assert not ring.path.parent.parent.exists()


# Arguments -----------------------------------------------------------------------------------------------------------


def test_unknown_scope_lists_all(ring):
    with pytest.raises(ConfigError, match=r"unknown scope 'wirte'; did you mean 'write'\?") as caught:
        ring.create("ci", ["read", "wirte"])
    assert all(scope in str(caught.value) for scope in SCOPES)
    with pytest.raises(ConfigError, match="at least one scope: write"):
        ring.create("ci", [])
    assert not ring.path.exists()


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 65, "tk_ci", "deadbeef", "a\nb", "../x", "\x1b[31m", "-x"])
def test_invalid_names_are_refused(ring, name):
    with pytest.raises(ConfigError, match="cannot name an access key"):
        ring.create(name, ["read"])


@pytest.mark.parametrize("name", ["ci", "anna@laptop", "node-17.cluster", "größe", "a+b"])
def test_ordinary_names_are_accepted(ring, name):
    assert ring.create(name, ["read"])[0].name == name


@pytest.mark.parametrize(
    "arguments",
    [
        {"lifetime_s": 0},
        {"lifetime_s": -1},
        {"lifetime_s": float("nan")},
        {"lifetime_s": float("inf")},
        {"max_bytes": 0},
        {"max_bytes_per_s": -5},
        {"max_open_runs": 0},
        {"project": ""},
        {"project": "a\nb"},
        {"project": "x" * 201},
    ],
    ids=str,
)
def test_invalid_arguments_are_refused(ring, arguments):
    with pytest.raises(ConfigError):
        ring.create("ci", ["read"], **arguments)
    assert not ring.path.exists()


@pytest.mark.parametrize("overlap_s", [-1, float("nan"), float("inf")])
def test_invalid_overlap_is_refused(ring, overlap_s):
    ring.create("ci", ["read"])
    with pytest.raises(ConfigError, match="overlap_s"):
        ring.rotate("ci", overlap_s=overlap_s)


# Last use ------------------------------------------------------------------------------------------------------------


def test_last_use_is_stored_once_a_minute(ring, clock):
    _, token = ring.create("ci", ["write"])
    ring.create("unused", ["write"])
    before = ring.path.read_bytes(), ring.path.stat().st_mtime_ns
    start_s = clock.wall_s()
    for _ in range(119):
        assert ring.check(token) is not None
        clock.advance(1)
    used, unused = ring.list()
    assert (used.last_used, unused.last_used) == (start_s + 60, None)
    assert (ring.path.read_bytes(), ring.path.stat().st_mtime_ns) == before


def test_last_use_of_other_servers_is_kept(ring, clock):
    _, first = ring.create("first", ["write"])
    _, second = ring.create("second", ["write"])
    start_s = clock.wall_s()
    ring.check(first)
    later(ring, clock).check(second)
    assert [key.last_used for key in ring.list()] == [start_s, start_s + 1]


def test_last_use_that_cannot_be_stored_keeps_nobody_out(ring):
    _, token = ring.create("ci", ["write"])
    (ring.path.parent / "last_used.json").mkdir()
    assert ring.check(token) is not None
    assert ring.list()[0].last_used is None


def test_damaged_times_of_last_use_are_ignored(ring):
    _, token = ring.create("ci", ["write"])
    (ring.path.parent / "last_used.json").write_text("{")
    assert ring.list()[0].last_used is None
    assert ring.check(token) is not None
    assert ring.list()[0].last_used is not None


# Processes and threads -----------------------------------------------------------------------------------------------


def test_processes_that_create_keys_at_once_lose_none(tmp_path, script):
    code = """
        import sys
        from tachograph.server.team import KeyRing, keys_path
        ring = KeyRing(keys_path(sys.argv[1]))
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(20):
            print(ring.create(f"{sys.argv[2]}-{number}", ["write"])[1])
    """
    writers = [script(code, tmp_path / "data", name) for name in ("a", "b", "c")]
    for writer in writers:
        assert writer.process.stdout.readline() == "ready\n"
    for writer in writers:
        writer.process.stdin.write("go\n")
        writer.process.stdin.flush()
    tokens = [token for writer in writers for token in writer.ok().split()]
    ring = KeyRing(keys_path(tmp_path / "data"))
    assert len(tokens) == 60
    assert {ring.check(token).name for token in tokens} == {f"{name}-{n}" for name in "abc" for n in range(20)}
    assert not list(ring.path.parent.glob("*.tmp"))


def test_revocation_is_noticed_by_another_process(tmp_path, script):
    code = """
        import sys
        from tachograph.server.team import KeyRing, keys_path
        ring = KeyRing(keys_path(sys.argv[1]))
        for line in sys.stdin:
            key = ring.check(line.strip())
            print(key.name if key else "refused", flush=True)
    """
    ring = KeyRing(keys_path(tmp_path / "data"))
    _, token = ring.create("ci", ["write"])
    server = script(code, tmp_path / "data")

    def ask():
        server.process.stdin.write(f"{token}\n")
        server.process.stdin.flush()
        return server.process.stdout.readline().strip()

    assert ask() == "ci"
    ring.revoke("ci")
    wait_for(lambda: ask() == "refused", "the refusal")
    ring.create("ci", ["write"])
    assert ask() == "refused"


def test_threads_may_check_and_change_keys_at_once(tmp_path):
    ring = KeyRing(keys_path(tmp_path / "data"))
    _, token = ring.create("ci", ["write"])
    failures = []

    def check():
        for _ in range(200):
            if KeyRing(ring.path).check(token) is None or ring.check(token) is None:
                failures.append("refused")

    def change(name):
        for number in range(10):
            ring.create(f"{name}-{number}", ["read"])

    threads = [threading.Thread(target=check) for _ in range(2)]
    threads += [threading.Thread(target=change, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(ring.list()) == 21


def test_importing_keys_is_light(script):
    out = script("import sys, tachograph.remote; print(sorted(sys.modules))").ok()
    assert not {"numpy", "starlette", "click", "rich", "uvicorn"} & set(re.findall(r"'(\w+)'", out))
    assert sys.modules  # this process has them all


# Limits of failures --------------------------------------------------------------------------------------------------


def test_ten_failures_a_minute_are_allowed(tmp_path, clock):
    limiter = FailureLimiter(tmp_path, clock=clock.steady_s)
    for _ in range(9):
        assert limiter.add_failure("10.0.0.1") == 0
        clock.advance(1)
    assert limiter.wait_s("10.0.0.1") == 0
    assert limiter.add_failure("10.0.0.1") == 51
    assert (limiter.wait_s("10.0.0.1"), limiter.wait_s("10.0.0.2")) == (51, 0)
    clock.advance(50.5)
    assert limiter.wait_s("10.0.0.1") == 0.5
    clock.advance(0.5)
    assert limiter.wait_s("10.0.0.1") == 0
    assert limiter.add_failure("10.0.0.1") == 1  # the window slides: nine of the ten are younger


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("unix", "unix", True),
    ],
)
def test_addresses_of_one_client_count_together(tmp_path, clock, first, second, is_same):
    limiter = FailureLimiter(tmp_path, max_failures=1, clock=clock.steady_s)
    limiter.add_failure(first)
    assert (limiter.wait_s(second) > 0) is is_same


def num_addresses(data_dir: Path) -> int:
    (path,) = (data_dir / ".server" / "failures").iterdir()
    return len(json.loads(path.read_text())["times"])


def test_limiter_remembers_a_bounded_number_of_addresses(tmp_path, clock):
    limiter = FailureLimiter(tmp_path, max_failures=1, max_addresses=100, num_files=1, clock=clock.steady_s)
    for number in range(1000):
        limiter.add_failure(f"10.0.{number // 256}.{number % 256}")
    assert num_addresses(tmp_path) == 100
    assert limiter.wait_s("10.0.3.231") > 0  # the last of them
    clock.advance(61)
    limiter.add_failure("10.1.0.0")
    assert num_addresses(tmp_path) == 1


def test_limiter_forgets_the_address_that_failed_longest_ago(tmp_path, clock):
    limiter = FailureLimiter(tmp_path, max_failures=2, max_addresses=2, num_files=1, clock=clock.steady_s)
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3"):
        limiter.add_failure(address)
    assert limiter.wait_s("10.0.0.1") > 0
    assert limiter.add_failure("10.0.0.2") == 0
