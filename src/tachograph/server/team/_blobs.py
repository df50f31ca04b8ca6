"""Files that belong to records, such as images, on the server: stored once, under the hash of their content.

A client asks for a hash first and sends the file only if the server lacks it. The answer would tell whether anyone has
sent that file, so each project has blobs of its own, and so have keys for all projects.

A blob counts towards the limit of the key that sent it first.
"""

from __future__ import annotations

import re
from pathlib import Path

from tachograph._base.files import add_file, make_folder
from tachograph.remote import hash_bytes
from tachograph.server.team._copies import InvalidBatchError, project_folder
from tachograph.server.team._key_usage import list_blob

__all__ = ["BlobStore"]

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class BlobStore:
    """The blobs below the folder of a server."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, digest: str, project: str | None) -> bool:
        """Return whether there is a blob.

        Raises:
            InvalidBatchError: if the digest is not a SHA-256 in hexadecimal.
        """
        return self._path(digest, project).is_file()

    def check(self, digest: str, data: bytes) -> None:
        """Raise `InvalidBatchError` if the data has another digest."""
        if hash_bytes(data) != digest:
            raise InvalidBatchError("the body does not have this hash: it was changed on its way")

    def add(self, digest: str, data: bytes, project: str | None, owner: str) -> bool:
        """Store a blob for a key, whose name is the owner; return False if there is one already.

        Raises:
            OSError: if it cannot be written.
        """
        path = self._path(digest, project)
        make_folder(path.parent, below=self._root, mode=0o700)
        list_blob(self._root, owner, path)  # first: a line without a blob does not count
        return add_file(path, data, below=self._root, mode=0o600)

    def _path(self, digest: str, project: str | None) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise InvalidBatchError("the name of a blob is the SHA-256 of its content, in hexadecimal")
        owner = ("all",) if project is None else ("projects", project_folder(project))
        return self._root.joinpath(".server", "blobs", *owner, digest[:2], digest)
