"""`tacho artifact`: list, download, verify and remove artifacts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import rich_click as click
from rich.text import Text

from tachograph._base.settings import resolve_settings
from tachograph.cli._format import add_row, ago, json_text, new_console, new_table, plural, safe, size
from tachograph.cli._options import json_option, log_dir_option, log_dirs_of
from tachograph.cli._terminal import echo
from tachograph.exceptions import ArtifactError
from tachograph.journal.artifacts import ArtifactStore, ArtifactVersion, list_artifacts

if TYPE_CHECKING:
    from tachograph.remote import ServerArtifacts

Command = TypeVar("Command", bound=Callable[..., Any])

__all__ = ["artifact"]


def _complete_artifact(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    names: list[str] = []
    for log_dir in log_dirs_of(context):
        for version in list_artifacts(log_dir):
            names += [version.name, str(version), *(f"{version.name}:{alias}" for alias in version.aliases)]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _server_options(command: Command) -> Command:
    """Add `--server` and `--project`."""
    command = click.option("--project", metavar="NAME", help="Only this project of the server.")(command)
    return click.option(
        "--server", metavar="URL", help="Ask this server of a team instead of the log folder; see tacho login."
    )(command)


def _on_server(server: str | None, project: str | None) -> ServerArtifacts | None:
    """Return the artifacts on the server that was named; None for the log folder."""
    if server is None:
        if project is not None:
            raise click.UsageError("--project names a project of a server: pass --server, too")
        return None
    from tachograph.cli._login import choose_server
    from tachograph.remote import ServerArtifacts

    allow_plain_http = resolve_settings({}).allow_plain_http
    return ServerArtifacts(choose_server(server, allow_plain_http=allow_plain_http), project)


@click.group()
def artifact() -> None:
    """List, download, verify and remove artifacts: files that runs stored, in versions."""


@artifact.command()
@click.argument("name", required=False, shell_complete=_complete_artifact)
@click.option("--run", metavar="RUN", help="Only artifacts that this run stored, by its name or id.")
@click.option("--files", "with_files", is_flag=True, help="Also list the files of each version.")
@log_dir_option
@_server_options
@json_option
def ls(
    name: str | None,
    run: str | None,
    with_files: bool,
    log_dir: str,
    server: str | None,
    project: str | None,
    as_json: bool,
) -> None:
    """List versions of artifacts: all, those of a NAME, or one, such as model:best."""
    remote = _on_server(server, project)
    versions: Sequence[ArtifactVersion]
    if remote is not None:
        is_one = name is not None and ":" in name
        listed_versions = [] if is_one else remote.versions(name=name, run=run)
        versions = [remote.find(str(name))] if is_one else listed_versions
        if with_files and not is_one:
            versions = [remote.find(str(version), project=version.project) for version in listed_versions]
    elif name is not None:
        store = ArtifactStore(log_dir)
        chosen_version = store.find(name)  # also checks that there is one
        versions = [chosen_version] if ":" in name else store.versions(name)
        versions = [version for version in versions if run is None or run in (version.run_name, version.run_id)]
    else:
        versions = list_artifacts(log_dir, run=run)
    if as_json:
        echo(json_text([_as_dict(version) for version in versions]))
        return
    if not versions:
        new_console().print(Text("There are no artifacts."))
        return
    table = new_table("artifact", "type", "aliases", "files", "size", "stored", "by run", right=("files", "size"))
    for version in versions:
        add_row(
            table,
            safe(str(version), 100),
            safe(version.type, 30),
            safe(", ".join(version.aliases), 60),
            str(version.num_files),
            size(version.size_bytes),
            ago(version.time),
            safe(version.run_name or "", 60),
        )
        for file in version.files if with_files else ():
            add_row(table, safe(f"  {file.path}", 4_096), "", "", "", size(file.size_bytes), "", "")
    console = new_console()
    if not console.is_terminal:
        console.width = 10_000  # other programs read lines
    console.print(table)


@artifact.command()
@click.argument("name", shell_complete=_complete_artifact)
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@log_dir_option
@_server_options
@json_option
def get(name: str, folder: str | None, log_dir: str, server: str | None, project: str | None, as_json: bool) -> None:
    """Copy the files of a version to FOLDER, or to artifacts/NAME-VERSION, and verify them.

    NAME is model:v2, model:best, or model for the latest version. From a server, the default folder also has the
    beginning of the hash, because servers number versions themselves.
    """
    remote = _on_server(server, project)
    version: ArtifactVersion = ArtifactStore(log_dir).find(name) if remote is None else remote.find(name)
    path = version.download(folder)
    if as_json:
        echo(json_text({**_as_dict(version), "path": path}))
        return
    echo(f"{safe(str(version))}: {plural(version.num_files, 'file')}, {size(version.size_bytes)}", err=True)
    echo(safe(path, 4_096))


@artifact.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_complete_artifact)
@log_dir_option
@_server_options
@json_option
@click.pass_context
def verify(
    context: click.Context,
    names: tuple[str, ...],
    log_dir: str,
    server: str | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Compare files with their hashes: of versions such as model:best, or of all. Exits with 1 if one differs."""
    remote = _on_server(server, project)
    versions: Sequence[ArtifactVersion]
    if remote is None:
        store = ArtifactStore(log_dir)
        versions = [store.find(name) for name in names] or list_artifacts(log_dir)
    else:
        versions = [remote.find(name) for name in names] or [
            remote.find(str(version), project=version.project) for version in remote.versions()
        ]
    problems: dict[str, str] = {}
    for version in versions:
        try:
            version.verify()
        except ArtifactError as error:
            problems[str(version)] = str(error)
    if as_json:
        echo(json_text({"num_versions": len(versions), "problems": problems}))
    else:
        for problem in problems.values():
            echo(safe(problem, 4_096), err=True)
        echo(f"{plural(len(versions), 'version')} verified, {plural(len(problems), 'problem')}")
    context.exit(1 if problems else 0)


@artifact.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_complete_artifact)
@log_dir_option
@click.option("--force", is_flag=True, help="Also versions that an alias other than latest points at.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(names: tuple[str, ...], log_dir: str, force: bool, yes: bool) -> None:
    """Remove versions, such as model:v2. Their files are deleted by: tacho artifact gc"""
    store = ArtifactStore(log_dir)
    versions = []
    for name in names:
        if ":" not in name:
            raise click.ClickException(f"{name!r}: name a version, such as {name}:v0")
        version = store.find(name)
        aliases = [alias for alias in version.aliases if alias != "latest"]
        if aliases and not force:
            raise click.ClickException(f"{version} is {', '.join(aliases)}; pass --force to remove it")
        versions.append(version)
    if not yes:
        click.confirm(f"Remove {', '.join(safe(str(version)) for version in versions)} for good?", abort=True)
    for version in versions:
        store.remove(version.name, version.version)
        echo(f"{safe(str(version))}: removed")


@artifact.command()
@log_dir_option
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@json_option
def gc(log_dir: str, dry_run: bool, as_json: bool) -> None:
    """Delete stored files that no version has, and what processes that were killed left behind."""
    cleared_space = ArtifactStore(log_dir).collect_garbage(is_dry_run=dry_run)
    if as_json:
        echo(json_text({**cleared_space._asdict(), "is_dry_run": dry_run}))
        return
    verb = "would delete" if dry_run else "deleted"
    echo(f"{verb} {plural(cleared_space.num_files, 'file')}, {size(cleared_space.num_bytes)}")


def _as_dict(version: ArtifactVersion) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(version, name) for name in ArtifactVersion.__struct_fields__}
    fields["files"] = msgspec.to_builtins(version.files)
    fields |= {name: getattr(version, name) for name in ("server", "project") if hasattr(version, name)}
    return {**fields, "num_files": version.num_files, "size_bytes": version.size_bytes}
