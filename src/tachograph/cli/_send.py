"""The part of `tacho sync` that sends runs to a team's server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tachograph._base.settings import resolve_settings
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder, RunState, current_state, read_destination
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
    unsent_bytes,
)
from tachograph.sinks import lock_export

__all__ = ["RunToSend", "Transfer", "find_runs_to_send", "send_runs", "read_transfers", "watch_runs"]

_MAX_AT_ONCE = 4
_GIVE_UP_PAUSE_S = 10.0
"""A sender that wants to wait for so long has failed several times in a row, or for a reason that does not pass."""
_RESCAN_S = 5.0
_UNKNOWN_SERVER = "it is not known where to send it: pass --server URL"


class RunToSend(NamedTuple):
    """A run, and the server that receives it."""

    name: str
    folder: RunFolder
    address: ServerAddress | None
    """None if it is not known."""

    @property
    def server(self) -> str:
        """The address as text; empty if it is not known."""
        return self.address.url if self.address is not None else ""


class Transfer(NamedTuple):
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


def find_runs_to_send(folders: Iterable[tuple[str, RunFolder]], server: str | None) -> list[RunToSend]:
    """Return the runs that are marked for sending, or all runs if a server is named.

    Raises:
        ConfigError: if the address is invalid.
    """
    settings = resolve_settings({})
    fixed_address = parse_server(server, allow_plain_http=settings.allow_plain_http) if server else None
    runs_to_send = []
    for name, folder in folders:
        destination = read_destination(folder)
        if fixed_address is not None:
            runs_to_send.append(RunToSend(name, folder, fixed_address))
        elif destination is not None:
            url = destination.server or settings.server or _last_server(folder)
            # An address of an earlier attempt was checked when that one started, with the settings of that time.
            address = parse_server(url, allow_plain_http=True) if url else None
            runs_to_send.append(RunToSend(name, folder, address))
    return runs_to_send


def _last_server(folder: RunFolder) -> str:
    """Return the server that has a part of a run, or the only one that this user is logged in to."""
    state = read_send_state(folder)
    servers = [state.server] if state is not None else stored_servers()
    return servers[0] if len(servers) == 1 else ""


def _check_keys(runs_to_send: Iterable[RunToSend]) -> None:
    """Raise `ConfigError` if there is no key for one of the servers."""
    for address in {run.address for run in runs_to_send}:
        if address is not None and find_credential(address) is None:
            raise ConfigError(f"no access key for {address}: run `tacho login {address}`, or set TACHO_API_KEY")


def send_runs(
    runs_to_send: Sequence[RunToSend], timeout_s: float, report: Callable[[Transfer], None]
) -> list[Transfer]:
    """Send runs, a few at a time; report each one when it is done. Return them in the same order.

    Raises:
        ConfigError: if there is no key for a server.
    """
    _check_keys(runs_to_send)
    lock = threading.Lock()

    def send(run: RunToSend) -> Transfer:
        result = _send_run(run, time.monotonic() + timeout_s)
        with lock:
            report(result)
        return result

    with concurrent.futures.ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
        return list(pool.map(send, runs_to_send))


def watch_runs(find: Callable[[], Sequence[RunToSend]], report: Callable[[Transfer], None]) -> None:
    """Send runs as they grow, also new ones, until interrupted.

    Args:
        find: returns the runs; called every few seconds.
        report: called whenever a run is complete on the server again, or fails for another reason.

    Raises:
        ConfigError: if there is no key for a server.
    """
    senders: dict[str, tuple[RunToSend, RunSender]] = {}
    last_reports: dict[str, tuple[int, str]] = {}
    with concurrent.futures.ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
        scanned_at_s = float("-inf")
        while True:
            if time.monotonic() - scanned_at_s >= _RESCAN_S:
                runs_to_send = find()
                _check_keys(runs_to_send)
                for run in runs_to_send:
                    key, address = str(run.folder.path), run.address
                    if key in senders or address is None:
                        continue
                    if lock_export(run.folder, "server") is not None:  # until this process ends
                        senders[key] = (run, _sender(run, address, is_watching=True))
                scanned_at_s = time.monotonic()
            for key, pause_s in zip(senders, pool.map(lambda pair: pair[1].poll(), senders.values()), strict=True):
                run, sender = senders[key]
                state = (sum(sender.state.have.values()), sender.state.error)
                if (sender.is_complete or pause_s >= _GIVE_UP_PAUSE_S) and state != last_reports.get(key):
                    last_reports[key] = state
                    report(_transfer_of(run, sender))
                    sender.num_sent_bytes = 0
            time.sleep(0.5)


def read_transfers(runs_to_send: Iterable[RunToSend]) -> list[Transfer]:
    """Return how far runs were sent, without asking the server."""
    transfers = []
    for run in runs_to_send:
        state = read_send_state(run.folder)
        sent_bytes_by_file = state.have if state is not None and state.server == run.server else {}
        copy = state.run if state is not None and sent_bytes_by_file else ""
        num_left_bytes = unsent_bytes(run.folder, state if sent_bytes_by_file else None)
        # An error is outdated once everything has arrived.
        error = state.error if state is not None and num_left_bytes else ""
        error = _UNKNOWN_SERVER if run.address is None else error
        transfers.append(Transfer(run.name, run.server, copy, sum(sent_bytes_by_file.values()), num_left_bytes, error))
    return transfers


def _send_run(run: RunToSend, deadline_s: float) -> Transfer:
    if run.address is None:
        return read_transfers([run])[0]
    with _send_lock(run.folder) as has_lock:
        if not has_lock and current_state(run.folder) is RunState.RUNNING:
            (transfer,) = read_transfers([run])
            error = "the run is being recorded and sends its records itself"
            return transfer if transfer.is_complete else transfer._replace(error=error)
        # The process that sent the run while it was recorded may still exist, and wait for a minute after a failure.
        # Sending the same bytes at the same time is safe: the server decides where each sender continues.
        sender = _sender(run, run.address)
        pause_s = sender.poll(flush=True)
        while not sender.is_complete and pause_s < _GIVE_UP_PAUSE_S and time.monotonic() < deadline_s:
            time.sleep(pause_s)
            pause_s = sender.poll(flush=True)
        sender.close()
        result = _transfer_of(run, sender)
        timeout_error = "" if result.is_complete or result.error else "not done in time"
        return result._replace(error=result.error or timeout_error)


def _sender(run: RunToSend, address: ServerAddress, *, is_watching: bool = False) -> RunSender:
    destination = read_destination(run.folder)
    is_controlled = is_watching and destination is not None and destination.remote_control
    connection = Connection(address, lambda: current_token(address))
    return RunSender(run.folder, connection, lambda *_: None, remote_control=is_controlled)


def _transfer_of(run: RunToSend, sender: RunSender) -> Transfer:
    state = sender.state
    # Once it is complete, files may be left that the server does not accept, which are reported apart.
    num_left_bytes = lag_bytes(run.folder, state.have) if sender.is_complete else unsent_bytes(run.folder, state)
    error = state.error
    if state.num_rejected_media and not error:
        error = f"the server rejected {state.num_rejected_media} media files"
    if state.num_rejected_artifacts and not error:
        error = f"the server rejected {state.num_rejected_artifacts} artifacts or files of artifacts"
    return Transfer(run.name, run.server, state.run, sender.num_sent_bytes, num_left_bytes, error)


@contextlib.contextmanager
def _send_lock(folder: RunFolder) -> Iterator[bool]:
    """Keep other processes from sending a run; yield False if another process is already sending it."""
    descriptor = lock_export(folder, "server")
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None and descriptor >= 0:
            os.close(descriptor)
