"""The folder for the ranks of one machine that does not see the folder of rank 0, until they are sent to a server.

Rank 0 creates the folder of a run. Where the machines of a job share no disk, the ranks of each other machine write
their files into a folder of their own below `log_dir`, in the layout of a run folder. They are sent to the server of
the team, which adds them to the run of the job.

On the server, and on the machine of rank 0, all these files are in one folder. A rank may run on another machine in the
next attempt, so their names contain no rank but a number derived from the process that wrote them. The numbers are
larger than any rank, which distinguishes these files from the ones of rank 0's machine.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from tachograph._base.files import make_folder, read_small, replace_file
from tachograph._base.guard import faults
from tachograph._base.typed import decode_json
from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import ProcessIdentity, process_started, this_process

__all__ = [
    "FIRST_NODE_NUMBER",
    "LAST_NODE_NUMBER",
    "NodeFacts",
    "node_file_number",
    "open_node_folder",
    "read_node_facts",
]

FIRST_NODE_NUMBER = 100_000_000
"""The smallest number of a file of another machine; ranks are smaller."""
LAST_NODE_NUMBER = 999_999_999
_FOLDER = ".tacho-nodes"
_MAX_FACTS_BYTES = 64 << 10


class NodeFacts(msgspec.Struct, frozen=True):
    """The content of `.tacho/node.json`: which run the files belong to."""

    job: str
    """The id of the distributed job; see `tachograph._base.ranks.job_id`."""
    run_name: str = ""
    """The name that the program gave to the run; empty if it gave none."""
    started_at: float = 0.0
    """When the first rank of this machine started, as a wall time."""


def open_node_folder(log_dir: str, facts: NodeFacts) -> RunFolder:
    """Create the folder of this machine's ranks, or return it if another rank has created it.

    The processes that one launcher started use the same folder, a later job with the same id another one.

    Raises:
        OSError: if it cannot be created.
    """
    root, process, launcher = Path(log_dir), this_process(), os.getppid()
    identity = (facts.job, process.host, process.boot_id, process.pid_namespace, launcher, process_started(launcher))
    folder = RunFolder(root / _FOLDER / _digest(identity).hex())
    root.mkdir(parents=True, exist_ok=True)
    make_folder(folder.private, below=root)
    if read_node_facts(folder) is None:
        replace_file(_facts_path(folder), msgspec.json.encode(facts), below=folder.path)
    return folder


def read_node_facts(folder: RunFolder) -> NodeFacts | None:
    """Return the run that the files of such a folder belong to; None for any other folder."""
    try:
        return decode_json(read_small(_facts_path(folder), _MAX_FACTS_BYTES), NodeFacts)
    except faults(OSError, msgspec.MsgspecError):
        return None


def node_file_number(job: str, process: ProcessIdentity, rank: int) -> int:
    """Return the number of the file that a rank writes into such a folder."""
    identity = (job, process.host, process.boot_id, process.pid_namespace, process.pid, process.pid_started, rank)
    return FIRST_NODE_NUMBER + int.from_bytes(_digest(identity), "big") % (LAST_NODE_NUMBER + 1 - FIRST_NODE_NUMBER)


def _digest(identity: tuple[str | int | None, ...]) -> bytes:
    text = "\n".join(map(str, identity))
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _facts_path(folder: RunFolder) -> Path:
    return folder.private / "node.json"
