"""`ServerArtifacts`: the artifacts on a team's server, to list, download and verify from any machine.

Files come in ranges, so an interrupted download continues where it was; each is checked against its hash.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from tachograph._base.typed import convert, decode_json
from tachograph.exceptions import ArtifactError, ConfigError
from tachograph.journal.artifacts import (
    ArtifactFile,
    ArtifactVersion,
    check_artifact_name,
    digest_of,
    is_sha256,
    is_version,
    parse_reference,
)
from tachograph.records import restore_non_finite
from tachograph.remote._address import ServerAddress
from tachograph.remote._connection import Connection, ConnectionFailedError, ServerResponse
from tachograph.remote._credentials import find_credential

__all__ = ["ServerArtifact", "ServerArtifacts"]

T = TypeVar("T")

_RANGE_BYTES = 4 << 20
_FILES_PER_PAGE = 2_000
_MAX_FILES = 1_000_000
_RETRY_PAUSES_S = (0.5, 2.0, 5.0)


class ServerArtifact(ArtifactVersion, kw_only=True):
    """A version of an artifact on a team's server. `download` and `verify` read its files from there."""

    server: str = ""
    """The address of the server."""
    project: str = ""
    """Its project; empty if the key can see one project alone."""
    listed_files: int = 0
    """Number of files; a list of versions has no files."""
    listed_bytes: int = 0
    """The size of all files."""
    source: Any = None
    """The `ServerArtifacts` that it comes from."""

    @property
    def num_files(self) -> int:
        """Number of files."""
        return self.listed_files

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return self.listed_bytes

    def _folder_name(self) -> str:
        # The log folder may have other files under the same name and number.
        return f"{self.name}-{self.version}-{self.digest[:8]}"

    def _blocks(self, file: ArtifactFile) -> Iterator[bytes]:
        if file.url is not None or not file.sha256:
            yield from super()._blocks(file)  # on a file system that both machines have, perhaps
        else:
            yield from self.source.read_blocks(self, file)

    def _check(self, file: ArtifactFile, sha256: str) -> None:
        if file.url is None and sha256 != file.sha256:
            raise ArtifactError(f"{self}: the content of {file.path!r} was changed on {self.server}")
        super()._check(file, sha256)


class ServerArtifacts:
    """The artifacts on a team's server that a key can see.

    Args:
        address: the server.
        project: only this project; by default, all that the key can see.
        timeout_s: limit for connecting and for each read.
    """

    def __init__(self, address: ServerAddress, project: str | None = None, *, timeout_s: float = 30.0) -> None:
        self._address = address
        self._project = project
        credential = find_credential(address)
        if credential is None:
            raise ConfigError(f"no access key for {address}: run `tacho login {address}`, or set TACHO_API_KEY")
        self._connection = Connection(address, lambda: credential.token, timeout_s=timeout_s)
        weakref.finalize(self, self._connection.close)  # versions refer to this object as long as they are used

    def versions(self, *, name: str | None = None, run: str | None = None) -> list[ServerArtifact]:
        """Return versions without their files, by name, oldest first.

        Raises:
            ArtifactError: if the server cannot be reached, or does not allow it.
        """
        page = self._get("artifacts", {"name": name, "run": run, "project": self._project})
        artifacts = [self._version(each) for each in _items(page, "artifacts")]
        names = dict.fromkeys((version.project, version.name) for version in artifacts)
        return [each for key in names for each in reversed(artifacts) if (each.project, each.name) == key]

    def find(self, reference: str, *, project: str | None = None) -> ServerArtifact:
        """Return a version with its files: ``model:v2``, ``model:best``, or ``model`` for the latest one.

        Args:
            reference: name and version or alias.
            project: the project, if several have such an artifact.

        Raises:
            ArtifactError: if there is none, or the server cannot be reached or does not allow it.
        """
        name, alias = parse_reference(reference)
        target = f"artifacts/{quote(name, safe='')}"
        query: dict[str, Any] = {"version": alias, "project": project or self._project, "limit": _FILES_PER_PAGE}
        page = self._get(target, query)
        version = self._version(page.get("artifact"))
        if version.name != name or (is_version(alias) and version.version != alias):
            raise self._invalid()
        query["version"] = version.version  # an alias may move between two requests
        while files := [_convert(each, ArtifactFile, self._invalid) for each in _items(page, "files")]:
            version.files += files
            if len(version.files) >= min(version.num_files, _MAX_FILES):
                break
            page = self._get(target, {**query, "offset": len(version.files)})
        if digest_of(version.files) != version.digest:
            raise ArtifactError(f"{version}: the list of files that {self._address} sent does not have its hash")
        return version

    def read_blocks(self, version: ServerArtifact, file: ArtifactFile) -> Iterator[bytes]:
        """Yield the content of a file in pieces.

        Raises:
            ArtifactError: if it cannot be read.
        """
        query = {"version": version.version, "project": version.project or self._project}
        target = f"artifacts/{quote(version.name, safe='')}/files/{file.sha256}"
        num_read_bytes = 0
        while num_read_bytes < file.size_bytes:
            last = min(num_read_bytes + _RANGE_BYTES, file.size_bytes) - 1
            response = self._request(target, query, {"Range": f"bytes={num_read_bytes}-{last}"})
            data = response.body
            is_expected = response.status == 206 or (response.status == 200 and len(data) == file.size_bytes)
            if not is_expected or not data or num_read_bytes + len(data) > file.size_bytes:
                raise ArtifactError(f"{version}: {file.path!r} has another size on {self._address}")
            num_read_bytes += len(data)
            yield data

    def _version(self, value: Any) -> ServerArtifact:
        view = _convert(value, _ArtifactView, self._invalid)
        if not is_version(view.version) or not is_sha256(view.digest):
            raise self._invalid()
        return ServerArtifact(
            name=check_artifact_name(view.name),
            version=view.version,
            digest=view.digest,
            type=view.type,
            description=view.description,
            metadata=restore_non_finite(view.metadata),
            files=[],
            run_id=view.run_id,
            run_name=view.run_name,
            time=view.time,
            aliases=view.aliases,
            server=self._address.url,
            project=view.project,
            listed_files=view.num_files,
            listed_bytes=view.size_bytes,
            source=self,
        )

    def _get(self, target: str, query: Mapping[str, Any]) -> dict[str, Any]:
        response = self._request(target, query, {})
        page = _convert_json(response.body)
        if response.status != 200 or page is None:
            raise self._invalid()
        return page

    def _request(self, target: str, query: Mapping[str, Any], headers: Mapping[str, str]) -> ServerResponse:
        """Send a request and return its answer; repeat it a few times if there is none."""
        text = urlencode({name: value for name, value in query.items() if value not in {None, ""}})
        path = f"/api/v1/{target}?{text}" if text else f"/api/v1/{target}"
        for pause_s in (*_RETRY_PAUSES_S, None):
            try:
                response = self._connection.request("GET", path, headers=headers)
            except ConnectionFailedError as error:
                if pause_s is None:
                    raise ArtifactError(f"cannot reach {self._address}: {error}") from None
            else:
                if response.status not in {429, 503} or pause_s is None:
                    return self._check(response)
            time.sleep(pause_s)
        raise AssertionError  # the last round returns or raises

    def _check(self, response: ServerResponse) -> ServerResponse:
        if response.status in {200, 206}:
            return response
        hint = "; check the key with `tacho whoami`: it needs the scope `read`" if response.status in {401, 403} else ""
        raise ArtifactError(f"{self._address}: {response.reason}{hint}")

    def _invalid(self) -> ArtifactError:
        return ArtifactError(f"{self._address}: the answer is not from a Tachograph server of this version")


class _ArtifactView(msgspec.Struct, kw_only=True):
    """A version as the server describes it."""

    name: str
    version: str
    project: str
    digest: str
    type: str
    description: str | None = None
    metadata: dict[str, Any] = {}
    num_files: int
    size_bytes: int
    run_id: str | None = None
    run_name: str | None = None
    time: float
    aliases: list[str]


def _items(page: Mapping[str, Any], name: str) -> list[Any]:
    items = page.get(name)
    return items if isinstance(items, list) else []


def _convert(value: Any, kind: type[T], invalid: Callable[[], ArtifactError]) -> T:
    try:
        return convert(value, kind)
    except msgspec.MsgspecError:
        raise invalid() from None


def _convert_json(data: bytes) -> dict[str, Any] | None:
    try:
        return decode_json(data, dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
