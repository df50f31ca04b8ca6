"""Rebuild the code of a run: as a shell script to read and run, or as a folder.

The journal is not trusted. In a script every word from it is quoted, and comments contain no control characters.

A folder is a new repository, with the objects of a repository that the user chose: the one that contains the working
directory, or an argument. Nothing of the run names a repository, a program or a filter, and no configuration is read in
the new one; `tachograph._base.git` has the rule. Stored files are written below the folder, never through a link and
never as a part of a repository. The command of the run is only printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tachograph._base.files import add_file, make_folder
from tachograph.exceptions import CodeError
from tachograph.reader import RunDigest
from tachograph.reader.captured_code import (
    SourceFile,
    code_file_path,
    code_missing_reason,
    code_section,
    find_object_folder,
    last_code,
    read_code_file,
    read_patch,
    read_sources,
    run_git,
)
from tachograph.records import MASK

__all__ = ["Rebuilt", "rebuild", "reproduction_script"]

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256_CHARS = 64
_CHECKOUT_S = 600.0


class Rebuilt(NamedTuple):
    """The result of `rebuild`."""

    notes: list[str]
    """Parts that are missing, or differ from the code of the run."""
    command: str
    """The command of the run, quoted for a shell."""


def reproduction_script(run: RunDigest, folder: str | None = None) -> str:
    """Return a shell script that rebuilds the code and the packages of a run and then starts it.

    Args:
        run: the run.
        folder: the folder that the script creates; named after the run by default.

    Raises:
        CodeError: if the run has neither a commit nor stored files.
    """
    code = last_code(run)
    git = _git_of(run, code)
    sources = _stored_sources(run, code)
    target = folder or f"{run.name}-code"
    patch = code_section(code, "diff").get("file")
    lines = [
        "#!/bin/sh",
        f"# Rebuilds the code of the run {_comment(run.name)}, then starts it. Read it before you run it.",
        *(f"# Note: {_comment(note)}" for note in _notes(code, sources)),
        "set -eu",
        "",
        f"folder={shlex.quote(target)}",
        "# The code",
    ]
    if git is not None:
        source = _placeholder(str(git.get("remote") or "<repository>"))
        lines += [f"# The run was started in {_comment(git['root'])}."] if git.get("root") else []
        lines += [
            "export GIT_ALLOW_PROTOCOL=file:git:http:https:ssh # no programs as addresses",
            f'git clone --no-checkout -- {shlex.quote(source)} "$folder"',
            f'git -C "$folder" checkout --quiet --detach {git["commit"]}',
        ]
        if patch is not None:
            path = os.path.abspath(code_file_path(run.folder, patch))
            lines.append(f'git -C "$folder" apply --index --binary --whitespace=nowarn {shlex.quote(path)}')
    else:
        lines.append('mkdir -p -- "$folder"')
    for source_file in _to_write(sources, has_git=git is not None):
        target_path = f'"$folder"/{shlex.quote(source_file.path)}'
        captured_path = shlex.quote(os.path.abspath(code_file_path(run.folder, source_file.file)))
        if "/" in source_file.path:
            lines.append(f'mkdir -p -- "$folder"/{shlex.quote(os.path.dirname(source_file.path))}')
        lines.append(f"cp -- {captured_path} {target_path}")
        lines += [f"chmod +x -- {target_path}"] if source_file.is_executable else []
    packages = code_section(code, "packages").get("file")
    if packages is not None:
        path = os.path.abspath(code_file_path(run.folder, packages))
        python = re.match(r"\d+\.\d+", str(code_section(code, "interpreter").get("version") or ""))
        lines += [
            "",
            "# The packages",
            f'python{python[0] if python else "3"} -m venv "$folder"/.venv',
            f'"$folder"/.venv/bin/python -m pip install -r {shlex.quote(path)}',
            'PATH="$PWD/$folder/.venv/bin:$PATH"' if not os.path.isabs(target) else 'PATH="$folder/.venv/bin:$PATH"',
        ]
    lines += ["", "# The run", *_command_lines(run, code, git)]
    return "\n".join(lines) + "\n"


def rebuild(run: RunDigest, folder: Path, repository: str | None = None) -> Rebuilt:
    """Create a folder with the code of a run: a repository with the commit, the patch, and untracked files.

    Filters such as Git LFS do not run; their files have the content that is in the commit.

    Args:
        run: the run.
        folder: the folder to create; it must not exist, or be empty.
        repository: a local repository that has the commit; the one that contains the working directory by default.

    Raises:
        CodeError: if the folder is in use, the repository lacks the commit, or the patch does not apply.
    """
    code = last_code(run)
    git = _git_of(run, code)
    sources = _stored_sources(run, code)
    notes = _notes(code, sources)
    folder = Path(os.path.abspath(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CodeError(f"{folder} exists already; choose another folder")
    if not folder.parent.is_dir():
        raise CodeError(f"{folder.parent} does not exist; create it first")
    if git is not None:
        notes += _check_out(folder, git, repository)
        if patch := read_patch(run.folder, code):
            notes += _apply(folder, patch, is_masked=bool(code_section(code, "diff").get("masked")))
    else:
        folder.mkdir(exist_ok=True)
    for source in _to_write(sources, has_git=git is not None):
        path = folder / source.path
        try:
            make_folder(path.parent, below=folder)
            data = read_code_file(run.folder, source.file)
            if not add_file(path, data, below=folder, mode=0o777 if source.is_executable else 0o666):
                notes.append(f"{source.path} exists already and was left as it is")
        except OSError as error:
            raise CodeError(f"cannot write {path}: {error.strerror}") from error
    return Rebuilt(notes, "\n".join(_command_lines(run, code, git, folder=str(folder))))


def _git_of(run: RunDigest, code: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the git facts of a run with a valid commit, or None."""
    start = run.attempts[-1].start.get("git") if run.attempts else None
    git = {**(start if isinstance(start, Mapping) else {}), **code_section(code, "git")}
    return git if _COMMIT.fullmatch(str(git.get("commit"))) else None


def _stored_sources(run: RunDigest, code: Mapping[str, Any]) -> list[SourceFile]:
    sources = read_sources(run.folder, code)
    if not sources and _git_of(run, code) is None:
        raise CodeError(f"the code of {run.name!r} is unknown: {code_missing_reason(code, 'files')}")
    return sources


def _to_write(sources: list[SourceFile], *, has_git: bool) -> list[SourceFile]:
    """Return the files that git does not restore; a path that would leave the folder is never used."""
    return [source for source in sources if (source.is_untracked or not has_git) and _is_inside(source.path)]


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return not any(part in {"", ".", ".."} or "\0" in part or _is_git_folder(part) for part in parts)


def _is_git_folder(name: str) -> bool:
    """Return whether a file system may take a name for `.git`, as git itself decides it for the files of a commit."""
    visible = "".join(character for character in name if unicodedata.category(character) != "Cf")
    parts = (part.partition(":")[0].rstrip(" .").casefold() for part in visible.split("\\"))
    return any(part in {".git", "git~1"} for part in parts)


def _check_out(folder: Path, git: Mapping[str, Any], repository: str | None) -> list[str]:
    """Create a repository with the objects of another one, and check out the commit; return notes on it."""
    source = repository or os.getcwd()
    objects = find_object_folder(source)
    remedy = f"run this in a clone of {git['remote']}" if git.get("remote") else "run this in a clone of it"
    remedy += ", or pass the folder of one with --repository"
    if objects is None:
        started = f" (the run was started in {git['root']})" if git.get("root") else ""
        raise CodeError(f"{source} is not in a git repository: {remedy}{started}")
    commit = str(git["commit"])
    existed = folder.exists()
    git_dir = folder / ".git"
    object_format = ["--object-format=sha256"] if len(commit) == _SHA256_CHARS else []
    try:
        git_dir.mkdir(parents=True)
        _git(folder, "init", "--quiet", "--template=", *object_format)
        add_file(git_dir / "objects" / "info" / "alternates", _quoted_path(objects), below=folder)
        try:
            _git(folder, "cat-file", "-e", f"{commit}^{{commit}}")
        except CodeError as error:
            raise CodeError(f"{source} has no commit {commit}: fetch it, or {remedy}") from error
        _git(folder, "checkout", "--quiet", "--detach", commit)
    except (CodeError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if existed:
            folder.mkdir(exist_ok=True)
        if isinstance(error, OSError):
            raise CodeError(f"cannot write {folder}: {error.strerror}") from error
        raise
    filtered = (":(top)", ":(top,exclude,attr:!filter)", ":(top,exclude,attr:-filter)")
    if _git(folder, "ls-files", "-z", "--", *filtered):
        return ["files with a filter, such as Git LFS, have the content of the commit: the filter was not run"]
    return []


def _quoted_path(path: str) -> bytes:
    """Return a line of `objects/info/alternates`, in which a path may contain any character."""
    is_plain = set(b'"\\').isdisjoint
    octets = os.fsencode(path)
    return b'"%s"\n' % b"".join(
        bytes([octet]) if 32 <= octet < 127 and is_plain([octet]) else b"\\%03o" % octet for octet in octets
    )


def _apply(folder: Path, patch: bytes, *, is_masked: bool) -> list[str]:
    """Apply the patch; return what did not work because secrets were masked.

    A masked line does not fit the commit, unless the patch adds it. Then git applies the other parts, and writes those
    that do not fit to files that end in `.rej`. Old versions of git follow links there, so there must be none.
    """
    path = folder / ".git" / "run.patch"
    command = ("apply", "--index", "--binary", "--whitespace=nowarn")
    try:
        add_file(path, patch, below=folder)
        _git(folder, *command, "--", str(path))
    except OSError as error:
        raise CodeError(f"cannot write {path}: {error.strerror}") from error
    except CodeError as error:
        if not is_masked or any(rejected.is_symlink() for rejected in folder.rglob("*.rej")):
            raise CodeError(f"{folder} has the commit, but the patch {path} does not apply: {error}") from error
        with contextlib.suppress(CodeError):  # it exits with 1 if a part does not fit
            _git(folder, "-c", "core.symlinks=false", *command, "--reject", "--", str(path))
        return ["changes next to a masked secret could not be applied: see the .rej files"]
    return []


def _git(folder: Path, *arguments: str) -> bytes:
    """Run git in the repository that `_check_out` creates."""
    return run_git(*arguments, cwd=str(folder), git_dir=str(folder / ".git"), timeout_s=_CHECKOUT_S)


def _notes(code: Mapping[str, Any], sources: list[SourceFile]) -> list[str]:
    """Return a note for each part that is missing from the captured code."""
    notes = []
    diff = code_section(code, "diff")
    if not code or code.get("missing") or diff.get("missing"):
        notes.append(f"uncommitted changes are unknown: {code_missing_reason(code, 'diff')}")
    for part in (diff, code_section(code, "files")):
        left_out = part.get("left_out")
        for entry in left_out if isinstance(left_out, list) else ():
            if isinstance(entry, Mapping):
                notes.append(f"not captured: {entry.get('path')}: {entry.get('reason')}")
        notes += [str(part["incomplete"])] if part.get("incomplete") else []
    if isinstance(diff.get("masked"), list):
        notes += [f"secrets in the changes of {path} were replaced by {MASK}" for path in diff["masked"]]
    notes += [
        f"secrets in {source.path} were replaced by {MASK}"
        for source in sources
        if source.is_masked and source.is_untracked
    ]
    submodules = code_section(code, "git").get("submodules")
    for entry in submodules if isinstance(submodules, list) else ():
        if isinstance(entry, Mapping):
            state = " with uncommitted changes" if entry.get("is_dirty") else ""
            notes.append(f"submodule {entry.get('path')} was at {entry.get('commit')}{state}")
    return notes


def _command_lines(
    run: RunDigest, code: Mapping[str, Any], git: Mapping[str, Any] | None, folder: str | None = None
) -> list[str]:
    """Return the command of the run, in the same folder of the project, with its environment."""
    start = run.attempts[-1].start if run.attempts else {}
    command = code.get("command") or start.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    if code.get("command") and words:
        words[0] = "python"  # the interpreter of the environment
    elif words:
        words.insert(0, "python")
    root = str((git or {}).get("root") or code_section(code, "files").get("root") or "")
    cwd = str(start.get("cwd") or "")
    inside = os.path.relpath(cwd, root) if root and cwd else os.curdir
    working_folder = shlex.quote(folder) if folder is not None else '"$folder"'
    if inside.startswith(os.pardir):
        inside, cwd = os.curdir, root
    if inside != os.curdir:
        working_folder = f"{working_folder}/{shlex.quote(inside)}"
    variables = [
        f"{name}={shlex.quote(_placeholder(str(value)))}"
        for name, value in code_section(code, "environment").items()
        if re.fullmatch(r"PYTHONHASHSEED|CUBLAS_\w+|TORCH_\w+|PYTORCH_\w+|NCCL_\w+|OMP_\w+", str(name))
    ]
    relative_words = [
        os.path.relpath(word, cwd) if root and word.startswith(os.path.join(root, "")) else word for word in words
    ]
    return [
        f"cd -- {working_folder}",
        " ".join([*variables, *(shlex.quote(_placeholder(word)) for word in relative_words)]),
    ]


def _placeholder(word: str) -> str:
    return word.replace(MASK, "<…>")


def _comment(text: str) -> str:
    """Return a text for a comment, in which a line break would start a command."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(text))[:300]
