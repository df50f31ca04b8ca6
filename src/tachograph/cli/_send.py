"""The part of `tacho sync` that sends runs to a team's server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder, read_destination
from tachograph.remote import (
    Connection,
    RunSender,
    ServerAddress,
    current_token,
    find_credential,
    lag_bytes,
    parse_server,
    read_send_state,
    stored_servers,
)
from tachograph.settings import resolve_settings
from tachograph.sinks import lock_export

__all__ = ["Destined", "Sending", "find_destined", "send_runs", "sending_status", "watch_runs"]

_MAX_AT_ONCE = 4
_GIVE_UP_PAUSE_S = 10.0
"""A sender that wants to wait for so long has failed several times in a row, or for a reason that does not pass."""
_RESCAN_S = 5.0
_UNKNOWN_SERVER = "it is not known where to send it: pass --server URL"


class Destined(NamedTuple):
    """A run and the server that it is to be sent to."""

    name: str
    folder: RunFolder
    address: ServerAddress | None
    """None if it is not known."""

    @property
    def server(self) -> str:
        """The address as text; empty if it is not known."""
        return self.address.url if self.address is not None else ""


class Sending(NamedTuple):
    """How far a run was sent."""

    run: str
    server: str
    copy: str
    """The name of the run on the server; empty if it never arrived there."""
    num_sent_bytes: int
    num_left_bytes: int
    error: str

    @property
    def is_complete(self) -> bool:
        """Whether the server has everything."""
        return not self.num_left_bytes and not self.error


def find_destined(folders: Iterable[tuple[str, RunFolder]], server: str | None) -> list[Destined]:
    """Return the runs that are to be sent: those that are marked for it, or all of them if a server is given.

    Raises:
        ConfigError: if the given address is invalid.
    """
    settings = resolve_settings({})
    given = parse_server(server, allow_plain_http=settings.allow_plain_http) if server else None
    found = []
    for name, folder in folders:
        destination = read_destination(folder)
        if given is not None:
            found.append(Destined(name, folder, given))
        elif destination is not None:
            known = destination.server or settings.server or _last_server(folder)
            # An address of an earlier attempt was checked when that one started, with the settings of that time.
            address = parse_server(known, allow_plain_http=True) if known else None
            found.append(Destined(name, folder, address))
    return found


def _last_server(folder: RunFolder) -> str:
    """Return the server that has a part of a run, or the only one that this user is logged in to."""
    state = read_send_state(folder)
    servers = [state.server] if state is not None else stored_servers()
    return servers[0] if len(servers) == 1 else ""


def _check_keys(destined: Iterable[Destined]) -> None:
    """Raise `ConfigError` if there is no key for one of the servers."""
    for address in {item.address for item in destined}:
        if address is not None and find_credential(address) is None:
            raise ConfigError(f"no access key for {address}: run `tacho login {address}`, or set TACHO_API_KEY")


def send_runs(destined: Sequence[Destined], timeout_s: float, report: Callable[[Sending], None]) -> list[Sending]:
    """Send runs, a few at a time; report each one when it is done. Return them in the same order.

    Raises:
        ConfigError: if there is no key for a server.
    """
    _check_keys(destined)
    lock = threading.Lock()

    def send(item: Destined) -> Sending:
        result = _send_run(item, time.monotonic() + timeout_s)
        with lock:
            report(result)
        return result

    with concurrent.futures.ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
        return list(pool.map(send, destined))


def watch_runs(find: Callable[[], Sequence[Destined]], report: Callable[[Sending], None]) -> None:
    """Send runs as they grow, also new ones, until interrupted.

    Args:
        find: returns the runs; called every few seconds.
        report: called whenever a run is complete on the server again, or fails for another reason.

    Raises:
        ConfigError: if there is no key for a server.
    """
    senders: dict[str, tuple[Destined, RunSender]] = {}
    reported: dict[str, tuple[int, str]] = {}
    with concurrent.futures.ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
        scanned_s = float("-inf")
        while True:
            if time.monotonic() - scanned_s >= _RESCAN_S:
                destined = find()
                _check_keys(destined)
                for item in destined:
                    key, address = str(item.folder.path), item.address
                    if key in senders or address is None:
                        continue
                    if lock_export(item.folder, "server") is not None:  # until this process ends
                        senders[key] = (item, _sender(item, address, is_watching=True))
                scanned_s = time.monotonic()
            for key, pause_s in zip(senders, pool.map(lambda pair: pair[1].poll(), senders.values()), strict=True):
                item, sender = senders[key]
                state = (sum(sender.state.have.values()), sender.state.error)
                if (sender.is_complete or pause_s >= _GIVE_UP_PAUSE_S) and state != reported.get(key):
                    reported[key] = state
                    report(_sending(item, sender))
                    sender.num_sent_bytes = 0
            time.sleep(0.5)


def sending_status(destined: Iterable[Destined]) -> list[Sending]:
    """Return how far runs were sent, without asking the server."""
    found = []
    for item in destined:
        state = read_send_state(item.folder)
        have = state.have if state is not None and state.server == item.server else {}
        copy = state.run if state is not None and have else ""
        left = lag_bytes(item.folder, have)
        error = state.error if state is not None and left else ""  # what has arrived makes an old error irrelevant
        error = _UNKNOWN_SERVER if item.address is None else error
        found.append(Sending(item.name, item.server, copy, sum(have.values()), left, error))
    return found


def _send_run(item: Destined, deadline_s: float) -> Sending:
    if item.address is None:
        return sending_status([item])[0]
    with _locked(item.folder) as is_ours:
        if not is_ours:
            (known,) = sending_status([item])
            return known if known.is_complete else known._replace(error="another process is sending it")
        sender = _sender(item, item.address)
        pause_s = sender.poll(flush=True)
        while not sender.is_complete and pause_s < _GIVE_UP_PAUSE_S and time.monotonic() < deadline_s:
            time.sleep(pause_s)
            pause_s = sender.poll(flush=True)
        sender.close()
        result = _sending(item, sender)
        late = "" if result.is_complete or result.error else "not done in time"
        return result._replace(error=result.error or late)


def _sender(item: Destined, address: ServerAddress, *, is_watching: bool = False) -> RunSender:
    destination = read_destination(item.folder)
    is_controlled = is_watching and destination is not None and destination.remote_control
    connection = Connection(address, lambda: current_token(address))
    return RunSender(item.folder, connection, lambda *_: None, remote_control=is_controlled)


def _sending(item: Destined, sender: RunSender) -> Sending:
    state = sender.state
    left = lag_bytes(item.folder, state.have)
    return Sending(item.name, item.server, state.run, sender.num_sent_bytes, left, state.error)


@contextlib.contextmanager
def _locked(folder: RunFolder) -> Iterator[bool]:
    """Keep other processes from sending a run; yield False if one does."""
    descriptor = lock_export(folder, "server")
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None and descriptor >= 0:
            os.close(descriptor)
