"""How Tachograph starts git. The rule that keeps other people's runs from executing anything:

1. **Git reads the configuration of a repository only where the user is.** A repository is the one that contains the
   working directory of the process, or one that the user names with an option. A journal, a captured file or anything
   else in a log folder never names one. Even there no hook, pager, monitor, diff program or fetch runs.
2. **Files of a run are restored only in a repository that Tachograph has just created**, with `git_dir`. There git
   reads no configuration at all: not of the user, not of the machine, not of the repository that has the commit, which
   only lends its objects. Without configuration, the attributes and submodules of a commit or a patch name programs
   (filters, drivers, hooks, updates) that do not exist.

`git_command` and `git_environment` return the words and the variables to start git with; nothing else starts it.
"""

from __future__ import annotations

import os

__all__ = ["git_command", "git_environment"]

_OVERRIDES = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "true",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "submodule.recurse": "false",
}
_OWN_OVERRIDES = {
    "core.logAllRefUpdates": "false",  # the log of references names the user, whom git may not be able to look up
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
}
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # the user may work in the repository
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
_NO_CONFIGURATION = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "HOME": os.devnull,  # git before 2.32 does not know GIT_CONFIG_GLOBAL
    "XDG_CONFIG_HOME": os.devnull,
}


def git_command(*arguments: str, git_dir: str | None = None) -> list[str]:
    """Return the command line of git.

    Args:
        arguments: the command of git and its arguments.
        git_dir: the folder `.git` of a repository that Tachograph created.
    """
    overrides = _OVERRIDES if git_dir is None else {**_OVERRIDES, **_OWN_OVERRIDES}
    options = [word for name, value in overrides.items() for word in ("-c", f"{name}={value}")]
    return ["git", "--no-pager", *options, *arguments]


def git_environment(git_dir: str | None = None) -> dict[str, str]:
    """Return the environment of git.

    Args:
        git_dir: the folder `.git` of a repository that Tachograph created. Git then uses this repository, with the
            folder that it runs in as the working tree, whatever the variables of the user or the files around it say.
    """
    # A relative folder, such as `.`, would be looked up where git runs: among the files of a run.
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
    variables = {**_ENVIRONMENT, "PATH": os.pathsep.join(folders)}
    if git_dir is None:
        return {**os.environ, **variables}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**inherited, **variables, **_NO_CONFIGURATION, "GIT_DIR": git_dir}
