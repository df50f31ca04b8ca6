"""Access keys of a server: who may send runs, see them, control them or administer the server.

A token is ``tk_<id>_<secret>``. The id is public and names the key in lists and logs. The secret has 256 random bits,
so only its plain SHA-256 is stored: nobody can guess it, and a slow hash would only slow down requests.

All keys are in one JSON file that is replaced as a whole under a lock, so commands that run at the same time lose
nothing. A server reads the file again when it has changed. A file that is damaged, or that other users can change,
admits no token at all: a revocation could be missing in it.

The times of last use are in a second file. They change all the time and are worth little, so they are written without
a lock, at most once a minute for each key, and checking a token never writes the keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from tachograph._base.clock import Clock, SystemClock
from tachograph._base.files import (
    UnsafeFileError,
    check_file,
    exclusive_lock,
    is_trusted,
    make_folder,
    open_to_read,
    read_small,
    replace_file,
    replacing,
    write_all,
)
from tachograph._base.typed import decode_json
from tachograph.exceptions import ConfigError, TachographError, did_you_mean
from tachograph.records import mask_text
from tachograph.remote import TOKEN_FORMAT
from tachograph.server._identity import SCOPES, Scope
from tachograph.server.team._audit_log import add_local_entry

__all__ = ["AccessKey", "KeyFileError", "KeyRing", "keys_path"]

_ID = re.compile(r"[0-9a-f]{8}", re.ASCII)
_NAME = re.compile(r"\w[\w.@+-]{0,63}")
_MAX_PROJECT_CHARS = 200
_MAX_KEYS = 1_000
_MAX_BYTES = 4 << 20
_DAY_S = 86_400.0
_KEEP_ENDED_S = 90 * _DAY_S
"""How long a revoked or expired key is still listed."""
_RETRY_S = 0.5
_LAST_USED_S = 60.0
_NO_DIGEST = "0" * 64
"""Compared with the secret of an unknown key, so that it takes the same time as a wrong secret."""


class KeyFileError(TachographError):
    """The file of access keys cannot be used, so no token is accepted; the message names the remedy."""


class AccessKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An access key, without its secret. Times are seconds since the epoch."""

    id: str
    name: str
    scopes: frozenset[Scope]
    created: float
    project: str | None = None
    """The only project that the key gives access to; None for all."""
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None
    """Correct to the minute."""
    rotated_from: str | None = None
    """The id of the key that this one replaces."""
    max_bytes_per_s: int | None = None
    max_bytes: int | None = None
    max_open_runs: int | None = None

    def allows(self, scope: Scope) -> bool:
        """Return whether the key has a scope; `admin` includes all of them."""
        return scope in self.scopes or "admin" in self.scopes

    def allows_project(self, project: str | None) -> bool:
        """Return whether the key gives access to the runs of a project."""
        return self.project is None or self.project == project

    def ended(self, now_s: float) -> float | None:
        """Return when the key was revoked or expired; None while it is valid."""
        ends = [end for end in (self.revoked, self.expires) if end is not None and end <= now_s]
        return min(ends, default=None)


class _StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: AccessKey
    sha256: str


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    keys: Sequence[_StoredKey]


def keys_path(data_dir: str | os.PathLike[str]) -> Path:
    """Return the path of the file of access keys in the data folder of a server."""
    return Path(data_dir) / ".server" / "keys.json"


class KeyRing:
    """The access keys in a file. Several processes and threads may use one file at the same time.

    Args:
        path: the file; see `keys_path`. Creating the first key creates the file and its folder.
        clock: for tests.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._keys: dict[str, _StoredKey] = {}
        self._error: KeyFileError | None = None
        self._file_state: tuple[int, ...] | None = ()  # not read yet
        self._last_read_s = -_RETRY_S
        self._last_used: dict[str, float] = {}

    # Checking --------------------------------------------------------------------------------------------------------

    def check(self, token: str) -> AccessKey | None:
        """Return the key of a token; None if the token is unknown, wrong, expired or revoked.

        Changes of the file apply at once.

        Raises:
            KeyFileError: if the file cannot be used.
        """
        with self._lock:
            self._poll()
            if self._error is not None:
                raise KeyFileError(str(self._error))
            match = TOKEN_FORMAT.fullmatch(token)
            if match is None:
                return None
            key_entry = self._keys.get(match[1])
            is_correct = hmac.compare_digest(
                _digest(match[2]), key_entry.sha256 if key_entry is not None else _NO_DIGEST
            )
            now_s = self._clock.wall_s()
            if key_entry is None or not is_correct or key_entry.key.ended(now_s) is not None:
                return None
            self._note_use(key_entry.key.id, now_s)
            return key_entry.key

    def find(self, key_id: str) -> AccessKey | None:
        """Return a key by its id, for a caller that has checked its token before; None if it is not valid any more.

        Raises:
            KeyFileError: if the file cannot be used.
        """
        with self._lock:
            self._poll()
            if self._error is not None:
                raise KeyFileError(str(self._error))
            key_entry = self._keys.get(key_id)
            now_s = self._clock.wall_s()
            if key_entry is None or key_entry.key.ended(now_s) is not None:
                return None
            self._note_use(key_id, now_s)
            return key_entry.key

    def _poll(self) -> None:
        """Read the file again if it has changed."""
        state, now_s = self._stat(), self._clock.steady_s()
        # A file that cannot be used is read again now and then: its folder may be the problem.
        if state == self._file_state and (self._error is None or 0 <= now_s - self._last_read_s < _RETRY_S):
            return
        self._last_read_s = now_s
        try:
            self._keys = {key_entry.key.id: key_entry for key_entry in self._read_keys()}
            self._error = None
        except KeyFileError as error:
            self._keys, self._error = {}, error
        self._file_state = state  # taken before reading, so that a change in the meantime is noticed next time

    def _stat(self) -> tuple[int, ...] | None:
        try:
            file_info = os.lstat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return (error.errno or 0,)  # reading fails, too, and gives the reason
        return (
            file_info.st_mode,
            file_info.st_uid,
            file_info.st_ino,
            file_info.st_size,
            file_info.st_mtime_ns,
            file_info.st_ctime_ns,
        )

    # Managing --------------------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        scopes: Collection[str],
        *,
        project: str | None = None,
        lifetime_s: float | None = None,
        max_bytes_per_s: int | None = None,
        max_bytes: int | None = None,
        max_open_runs: int | None = None,
    ) -> tuple[AccessKey, str]:
        """Create a key; return it with its token, which is not stored anywhere.

        Args:
            name: shown in lists and beside actions of the key; no two valid keys have the same name.
            scopes: some of `SCOPES`.
            project: the only project that the key gives access to.
            lifetime_s: seconds until the key expires; None for a key that does not.
            max_bytes_per_s: how fast the key may send.
            max_bytes: how many bytes the server stores for the key.
            max_open_runs: how many runs the key may have open at the same time.

        Raises:
            ConfigError: if an argument is invalid or the name is taken.
            KeyFileError: if the file cannot be used or written.
        """
        limits = {"max_bytes_per_s": max_bytes_per_s, "max_bytes": max_bytes, "max_open_runs": max_open_runs}
        for limit, value in limits.items():
            if value is not None and value < 1:
                raise ConfigError(f"{limit}={value!r}: expected a number of at least 1")
        if lifetime_s is not None and not 0 < lifetime_s < float("inf"):
            raise ConfigError(f"a key cannot expire after {lifetime_s!r} seconds; expected a positive number")
        _check_name(name)
        _check_project(project)
        valid_scopes = _check_scopes(scopes)
        with self._edit_keys(must_exist=False) as keys:
            now_s = self._clock.wall_s()
            if any(key_entry.key.name == name and key_entry.key.ended(now_s) is None for key_entry in keys.values()):
                raise ConfigError(
                    f"there is a valid access key named {name!r}; choose another name, or replace the key with "
                    f"tacho keys rotate {name}"
                )
            key = AccessKey(
                id=_new_id(keys),
                name=name,
                scopes=valid_scopes,
                created=now_s,
                project=project,
                expires=None if lifetime_s is None else now_s + lifetime_s,
                max_bytes_per_s=max_bytes_per_s,
                max_bytes=max_bytes,
                max_open_runs=max_open_runs,
            )
            token = _add(keys, key)
        self._audit("create_key", key)
        return key, token

    def list(self) -> Sequence[AccessKey]:
        """Return all keys with their last use, in the order of their creation; ended ones for 90 days.

        Raises:
            KeyFileError: if the file cannot be used.
        """
        last_used = self._read_last_used()
        keys = [key_entry.key for key_entry in self._read_keys()]
        return [msgspec.structs.replace(key, last_used=last_used.get(key.id)) for key in keys]

    def revoke(self, which: str) -> Sequence[AccessKey]:
        """Revoke a key by its id or token, or all valid keys of a name; return the revoked ones.

        Servers notice it at once.

        Raises:
            ConfigError: if there is no such key, or it is not valid any more.
            KeyFileError: if the file cannot be used or written.
        """
        with self._edit_keys() as keys:
            now_s = self._clock.wall_s()
            revoked_keys = [
                msgspec.structs.replace(key_entry.key, revoked=now_s) for key_entry in _find_valid(keys, which, now_s)
            ]
            for key in revoked_keys:
                keys[key.id] = msgspec.structs.replace(keys[key.id], key=key)
        for key in revoked_keys:
            self._audit("revoke_key", key)
        return revoked_keys

    def rotate(self, which: str, *, overlap_s: float = _DAY_S) -> tuple[AccessKey, str]:
        """Replace a key by a new one with the same rights; return the new one with its token.

        Args:
            which: the id of the key, or its name.
            overlap_s: seconds for which the old key stays valid. The new one is valid as long as the old one was
                when it was created.

        Raises:
            ConfigError: if there is no such key, or it is not valid any more, or was rotated before.
            KeyFileError: if the file cannot be used or written.
        """
        if not 0 <= overlap_s < float("inf"):
            raise ConfigError(f"overlap_s={overlap_s!r}: expected a number of at least 0")
        with self._edit_keys() as keys:
            now_s = self._clock.wall_s()
            key_entry = _find_valid(keys, which, now_s)[-1]
            old = key_entry.key
            for other in keys.values():
                if other.key.rotated_from == old.id:
                    raise ConfigError(
                        f"the access key {old.id} was rotated before; rotate its successor {other.key.id}, or create a "
                        "new key"
                    )
            new = msgspec.structs.replace(
                old,
                id=_new_id(keys),
                created=now_s,
                expires=None if old.expires is None else now_s + old.expires - old.created,
                rotated_from=old.id,
            )
            ends = now_s + overlap_s if old.expires is None else min(old.expires, now_s + overlap_s)
            keys[old.id] = msgspec.structs.replace(key_entry, key=msgspec.structs.replace(old, expires=ends))
            token = _add(keys, new)
        self._audit("rotate_key", new)
        return new, token

    def _audit(self, action: str, key: AccessKey) -> None:
        names = ("id", "name", "project", "expires", "rotated_from")
        facts = {name: getattr(key, name) for name in names if getattr(key, name) is not None}
        add_local_entry(self.path.parent.parent, action, new={**facts, "scopes": sorted(key.scopes)})

    # Files -----------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _edit_keys(self, *, must_exist: bool = True) -> Iterator[dict[str, _StoredKey]]:
        """Yield the keys by id, to be changed; write them at the end of the block, unless it raises."""
        below, folder = self.path.parent.parent, self.path.parent
        if must_exist and not os.path.lexists(self.path):
            raise ConfigError(f"there are no access keys in {self.path}; create one with tacho keys create")
        with _key_file_errors(self.path):
            below.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_folder(folder, below=below, mode=0o700)
            _check_not_shared(folder, 0o700)
            with exclusive_lock(self.path.with_suffix(".lock"), below=below, mode=0o600):
                keys = {key_entry.key.id: key_entry for key_entry in self._read_keys()}
                yield keys
                content = _KeyFile(1, self._keys_to_write(keys))
                data = msgspec.json.format(msgspec.json.encode(content, order="deterministic"), indent=1)
                with replacing(self.path, below=below, mode=0o600) as descriptor:
                    write_all(descriptor, data + b"\n")
                    os.fsync(descriptor)  # a power failure must not undo a revocation
                os.close(descriptor)

    def _keys_to_write(self, keys: dict[str, _StoredKey]) -> Sequence[_StoredKey]:
        """Return the valid keys, and keys that ended lately."""
        now_s = self._clock.wall_s()
        ends = {key_id: key_entry.key.ended(now_s) for key_id, key_entry in keys.items()}
        ended_ids = [key_id for key_id, end in ends.items() if end is not None and end >= now_s - _KEEP_ENDED_S]
        valid_ids = [key_id for key_id, end in ends.items() if end is None]
        if len(valid_ids) > _MAX_KEYS:
            raise ConfigError(f"{self.path} has {_MAX_KEYS} valid access keys, which is the limit; revoke unused ones")
        key_ids = {*valid_ids, *ended_ids[-_MAX_KEYS:]}
        return [key_entry for key_id, key_entry in keys.items() if key_id in key_ids]

    def _read_keys(self) -> Sequence[_StoredKey]:
        """Return the stored keys; none if there is no file.

        Raises:
            KeyFileError: if the file is damaged, cannot be read or can be changed by others.
        """
        below, folder = self.path.parent.parent, self.path.parent
        with _key_file_errors(self.path):
            try:
                check_file(self.path, below=below)
                file = open_to_read(self.path, below=below)
            except FileNotFoundError:
                return []
            with file:
                _check_not_shared(folder, 0o700)
                _check_not_shared(self.path, 0o600)
                data = file.read(_MAX_BYTES + 1)
        try:
            if len(data) > _MAX_BYTES:
                raise ValueError(f"has more than {_MAX_BYTES} bytes")
            key_entries = decode_json(data, _KeyFile).keys
            ids = {key_entry.key.id for key_entry in key_entries}
            if len(ids) < len(key_entries) or not all(map(_is_valid, key_entries)):
                raise ValueError("contains an invalid or repeated id or hash")
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # errors of msgspec quote no hash
            raise KeyFileError(
                f"{self.path} is damaged, so no access key is accepted: {error}. Restore it from a backup, or move it "
                "away and create new keys"
            ) from None
        return key_entries

    def _note_use(self, key_id: str, now_s: float) -> None:
        """Store the time at which a key was used, at most once a minute."""
        if abs(now_s - self._last_used.get(key_id, float("-inf"))) < _LAST_USED_S:
            return
        self._last_used[key_id] = now_s
        stored_times = self._read_last_used()
        # Another server may replace the file at the same time. Its keys or ours are then a minute late.
        times = {each: max(stored_times.get(each, 0.0), self._last_used.get(each, 0.0)) for each in self._keys}
        with contextlib.suppress(OSError):  # a full disk must not keep anyone out
            nonzero_times = {each: time_s for each, time_s in times.items() if time_s}
            replace_file(self._last_used_path, msgspec.json.encode(nonzero_times), below=self.path.parent, mode=0o600)
        self._last_used = {each: time_s for each, time_s in self._last_used.items() if each in self._keys}

    def _read_last_used(self) -> dict[str, float]:
        try:
            data = read_small(self._last_used_path, _MAX_BYTES)
            return decode_json(data, dict[str, float])
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            return {}

    @property
    def _last_used_path(self) -> Path:
        return self.path.with_name("last_used.json")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def _is_valid(key_entry: _StoredKey) -> bool:
    return bool(_ID.fullmatch(key_entry.key.id) and re.fullmatch(r"[0-9a-f]{64}", key_entry.sha256))


def _new_id(keys: Collection[str]) -> str:
    while (new := secrets.token_hex(4)) in keys:
        pass
    return new


def _add(keys: dict[str, _StoredKey], key: AccessKey) -> str:
    """Add a key with a new secret; return the token."""
    secret = secrets.token_urlsafe(32)
    keys[key.id] = _StoredKey(key, _digest(secret))
    return f"tk_{key.id}_{secret}"


def _find_valid(keys: dict[str, _StoredKey], which: str, now_s: float) -> list[_StoredKey]:
    """Return the valid keys with an id, a token or a name; the newest is the last.

    Raises:
        ConfigError: if there is none.
    """
    token = TOKEN_FORMAT.fullmatch(which)
    which = token[1] if token is not None else which
    matches = [key_entry for key_entry in keys.values() if which in {key_entry.key.id, key_entry.key.name}]
    valid = [key_entry for key_entry in matches if key_entry.key.ended(now_s) is None]
    if valid:
        return valid
    name = mask_text(which[:100])
    if matches:
        raise ConfigError(f"the access key {name!r} is revoked or expired already")
    hint = did_you_mean(which[:100], {key_entry.key.name for key_entry in keys.values()})
    raise ConfigError(f"there is no access key with the name or id {name!r}{hint or '; see tacho keys list'}")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.startswith("tk_") or _ID.fullmatch(name):
        raise ConfigError(
            f"{mask_text(name[:100])!r} cannot name an access key: use up to 64 letters, digits and . _ @ + -, "
            "without spaces, not starting with tk_, and not 8 hexadecimal digits like an id"
        )


def _check_project(project: str | None) -> None:
    if project is not None and (not project.strip() or not project.isprintable() or len(project) > _MAX_PROJECT_CHARS):
        raise ConfigError(
            f"{project[:100]!r} cannot be the project of an access key: expected up to {_MAX_PROJECT_CHARS} printable "
            "characters"
        )


def _check_scopes(scopes: Collection[str]) -> frozenset[Scope]:
    all_scopes = get_args(Scope)
    for scope in scopes:
        if scope not in all_scopes:
            raise ConfigError(
                f"unknown scope {mask_text(scope[:100])!r}{did_you_mean(scope[:100], all_scopes) or '.'} "
                f"The scopes are {_list_scopes()}"
            )
    if not scopes:
        raise ConfigError(f"an access key needs at least one scope: {_list_scopes()}")
    return frozenset(scope for scope in SCOPES if scope in scopes)


def _list_scopes() -> str:
    return ", ".join(f"{scope} ({meaning})" for scope, meaning in SCOPES.items())


def _check_not_shared(path: Path, mode: int) -> None:
    """Reject a file or folder that other users can change: they could add keys.

    Raises:
        KeyFileError: if they can.
    """
    file_info = os.stat(path)
    if os.name == "posix" and file_info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KeyFileError(
            f"other users can change {path}, so no access key is accepted: check the keys in it, then run "
            f"chmod {mode:o} {path}"
        )
    if not is_trusted(path):
        raise KeyFileError(f"{path} belongs to another user, so no access key is accepted; change its owner")


@contextlib.contextmanager
def _key_file_errors(path: Path) -> Iterator[None]:
    """Turn errors of the system into `KeyFileError`."""
    try:
        yield
    except OSError as error:
        reason = str(error) if isinstance(error, UnsafeFileError) else error.strerror or type(error).__name__
        if isinstance(error, PermissionError) and not isinstance(error, UnsafeFileError):
            reason += "; use them as the user that runs the server"
        raise KeyFileError(f"cannot use the access keys in {path}: {reason}") from None
