"""Sends the ranks of a machine that does not see the folder of rank 0; see `journal._node_folder`.

`NodeSender` sends the folder of such a machine. It asks the server for the run of its job, which exists there once the
machine of rank 0 has registered it, and adds its journals to that run. With each beat it states which ranks run, and
which ones have ended: only their own machine can see that a process is gone.

One process of the machine sends the files of all its ranks. `NodeFollower` runs in each rank; the one that has the lock
of the folder starts that process. If the rank is killed, another one gets the lock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

import msgspec

from tachograph._base.files import exclusive_lock
from tachograph._base.guard import faults, guard
from tachograph.exceptions import ConfigError
from tachograph.journal import (
    Heartbeat,
    RankHeartbeats,
    RunFolder,
    RunState,
    infer_writer_state,
    read_node_facts,
    this_process,
)
from tachograph.remote._connection import Connection
from tachograph.remote._sender import ROUTE, RetryError, RunSender, decode_answer, lag_bytes, read_send_state
from tachograph.remote._wire import BatchAnswer, Beat, Join, Joined

__all__ = ["NodeCollector", "NodeFollower", "NodeSender"]

_RETRY_S = 2.0
"""How often to ask for the run of the job: rank 0 may start a minute later."""
_MAX_BEAT_RANKS = 2_000
_LOCK_POLL_S = 0.05


class NodeSender(RunSender):
    """Sends the ranks of one machine to the run of their job."""

    def __init__(self, folder: RunFolder, connection: Connection, report: Callable[[str, str, str], None]) -> None:
        super().__init__(folder, connection, report)
        self._is_node = True
        self._num_gone = 0

    def poll(self, *, flush: bool = False, ignore_pause: bool = False) -> float:
        """Send a batch if one is due; send all and a beat as soon as a rank has ended."""
        with guard("looking for ranks that have ended"):
            num_gone = sum(heartbeat.is_gone for heartbeat in self._running_ranks().values())
            if num_gone != self._num_gone:
                self._num_gone = num_gone
                self._last_beat_s = -1e9
                flush = True  # first its last records: it may have stated why it ended
        return super().poll(flush=flush, ignore_pause=ignore_pause)

    def _register(self) -> None:
        facts = read_node_facts(self.folder)
        if facts is None:
            raise RetryError("the folder does not state its job", None)
        query = Join(facts.job, facts.run_name, max(0.0, time.time() - facts.started_at))
        response = self._connection.request("PUT", f"{ROUTE.removesuffix('/runs')}/jobs", msgspec.json.encode(query))
        if response.status in {404, 409}:
            raise RetryError(response.reason, _RETRY_S)
        reply = decode_answer(self._check(response), Joined)
        self._run_id = reply.run_id
        self._accept_registration(reply.registered)

    def _send_beat(self) -> None:
        beat = Beat(None, self._running_ranks(), lag_bytes=sum(self._unsent_bytes.values()), is_node=True)
        headers = {"Tacho-Now": f"{time.time():.3f}"}
        response = self._connection.request("PUT", f"{ROUTE}/{self._run_id}/beat", msgspec.json.encode(beat), headers)
        decode_answer(self._check(response), BatchAnswer)
        self._last_beat_s = self._clock()

    def _running_ranks(self) -> dict[str, Heartbeat]:
        """Return the heartbeats of the ranks that run, and of those whose process has ended."""
        all_heartbeats = RankHeartbeats(self.folder)
        caller = this_process()
        heartbeats: dict[str, Heartbeat] = {}
        for rank, heartbeat in all_heartbeats.get_all(all_heartbeats.ranks[:_MAX_BEAT_RANKS]).items():
            state = infer_writer_state(heartbeat.process, heartbeat, caller)
            if state in {RunState.RUNNING, RunState.CRASHED}:
                heartbeats[str(rank)] = msgspec.structs.replace(heartbeat, is_gone=state is RunState.CRASHED)
        return heartbeats

    def _send_files(self) -> None:
        """Do nothing: the other files belong to rank 0."""

    def _send_rank_map(self, flush: bool) -> None:
        """Do nothing: rank 0 keeps the map."""

    def _send_media(self) -> float | None:
        """Do nothing: media belongs to rank 0."""
        return None

    def _diverge(self) -> NoReturn:
        self._is_registered = False
        raise RetryError("the copy on the server differs; the rest is not sent", None)


class _Process(Protocol):
    """The process that sends the folder: a `SinkProcess`."""

    def attach(self, folder: RunFolder, report: Callable[[str, str, str], None]) -> None: ...

    def start(self) -> None: ...

    def close(self, timeout_s: float) -> bool: ...


class NodeFollower:
    """Starts the process that sends the ranks of this machine, if they write into a folder of their own.

    It is both a follower of the run and, by `collect`, polled by the writer thread.

    Args:
        folder: returns the folder of this machine's ranks; None as long as there is none.
        start_process: starts the process.
        report: called with the kind, the name and the reason of a failure.
    """

    name = "server"

    def __init__(
        self,
        folder: Callable[[], RunFolder | None],
        start_process: Callable[[], _Process],
        report: Callable[[str, str, str], None],
    ) -> None:
        self._folder = folder
        self._start_process = start_process
        self._report = report
        self._process: _Process | None = None
        self._has_failed = False
        self._is_closing = False
        self._lock = contextlib.ExitStack()

    def start(self) -> None:
        """Do nothing: the folder is not known yet."""

    def move(self, folder: RunFolder) -> None:
        """Do nothing: the folder of a rank is not moved."""

    def collect(self) -> None:
        """Start the process if the folder is known, and no other rank has started one."""
        folder = self._folder()
        if folder is not None and self._process is None and not self._has_failed and self._take_lock(folder):
            self._start(folder)

    def close(self, timeout_s: float) -> bool:
        """Send the rest; return whether the server has everything."""
        folder = self._folder()
        if folder is None or self._has_failed:
            return not self._has_failed
        if self._process is None and timeout_s <= 0 and not self._is_closing:
            self._is_closing = True  # the next call has the time to wait for the process of another rank
            return False
        deadline_s = time.monotonic() + max(timeout_s, 0.0)
        while self._process is None and not self._has_failed:
            is_locked = self._take_lock(folder)
            state = read_send_state(folder)
            if is_locked and state is not None and not lag_bytes(folder, state.have):
                self._lock.close()
                return True
            if is_locked or time.monotonic() >= deadline_s:  # it waits for the process of the other rank
                self._start(folder)
            else:
                time.sleep(_LOCK_POLL_S)
        is_complete = self._process is not None and self._process.close(max(0.0, deadline_s - time.monotonic()))
        if is_complete:
            self._lock.close()
        return is_complete

    def _take_lock(self, folder: RunFolder) -> bool:
        try:
            self._lock.enter_context(exclusive_lock(folder.private / "node.lock", below=folder.path, may_wait=False))
        except faults(OSError):
            return False
        return True

    def _start(self, folder: RunFolder) -> None:
        try:
            process = self._start_process()
            process.attach(folder, self._report)
            process.start()
            self._process = process
        except faults(ConfigError) as error:
            self._has_failed = True
            self._report("server_failed", self.name, f"the ranks of this machine are not sent: {error}")


class NodeCollector:
    """Lets the writer thread poll a `NodeFollower`."""

    def __init__(self, follower: NodeFollower) -> None:
        self._follower = follower

    def collect(self) -> None:
        """Start to send, if it is time."""
        self._follower.collect()

    def close(self) -> None:
        """Do nothing: the run closes its followers."""

    def forget(self) -> None:
        """Do nothing in a forked child."""
