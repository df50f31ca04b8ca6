"""A busy server tells trainers to send less often, and they do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tachograph.journal import RunFolder
from tachograph.server.team._send_pace import SendPace
from tests.remote.conftest import Team, send_all
from tests.store import append, step

MakeRun = Callable[..., RunFolder]


class Clocks:
    """A process of which a part of the time is CPU time."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0

    def run(self, seconds: float, busy_share: float) -> None:
        self.now_s += seconds
        self.cpu_s += seconds * busy_share

    def pace(self) -> SendPace:
        return SendPace(1.0, 5.0, clock=lambda: self.now_s, cpu_clock=lambda: self.cpu_s)


@pytest.mark.parametrize(
    ("trainers_share", "flush_s", "beat_s"),
    [(0.1, 1.0, 5.0), (0.6, 1.0, 5.0), (1.2, 2.0, 10.0), (3.0, 5.0, 10.0), (100.0, 10.0, 10.0)],
)
def test_load_settles_where_the_server_keeps_up(trainers_share: float, flush_s: float, beat_s: float):
    """The share is the CPU time that trainers would cause in a second if each sent once per second."""
    clocks = Clocks()
    pace = clocks.pace()
    for _ in range(50):
        clocks.run(2.0, min(1.0, trainers_share / pace.flush_interval_s))
    assert pace.flush_interval_s == pytest.approx(flush_s, rel=0.02)
    assert pace.beat_interval_s == pytest.approx(beat_s, rel=0.02)
    for _ in range(10):
        clocks.run(2.0, 0.05)
        assert pace.flush_interval_s >= 1.0
    assert (pace.flush_interval_s, pace.beat_interval_s) == (1.0, 5.0)


def test_sender_waits_as_long_as_the_server_says(team: Team, make_run: MakeRun):
    clocks = Clocks()
    team.app.ingest.pace = clocks.pace()
    folder = make_run(ends=False)
    sender = team.sender(folder)
    sender.poll(flush=True)
    assert sender._limits.flush_interval_s == 1.0
    for number in range(3):
        clocks.run(2.0, 1.0)
        append(folder, [step(10 + number)])
        sender.poll(flush=True)
    assert sender._limits.flush_interval_s == pytest.approx((1 / 0.6) ** 3)
    assert sender._limits.beat_interval_s == 10.0
    append(folder, [step(20)])
    sender.poll()
    assert team.copy_of(sender).journal.read_bytes() != folder.journal.read_bytes()  # it gathers
    send_all(sender)
