"""`tacho ab`: whether a change makes training faster, from arms that take turns."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import rich_click as click

from tachograph._base.files import open_user_file
from tachograph.cli._compare import load_runs, print_report
from tachograph.cli._files import write_file
from tachograph.cli._format import duration, json_text, new_console, safe
from tachograph.cli._options import complete_run, json_option, log_dir_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import TachographError
from tachograph.reader import find_readable_run, read
from tachograph.records import check_run_name

if TYPE_CHECKING:
    from tachograph.comparison import ArmCommand, ArmRun, ComparisonReport, RunEvidence
    from tachograph.integrations.zero_code import LaunchResult

__all__ = ["ab", "print_progress", "tag_run"]

_ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_MAX_LINES = 50


@click.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option(
    "--arms",
    nargs=2,
    metavar="'A=COMMAND' 'B=COMMAND'",
    help="Run two commands in turns and compare them, such as 'A=python train.py' 'B=python train.py --compile'.",
)
@click.option(
    "--pairs", default=5, show_default=True, type=click.IntRange(min=3), help="How often to run each command."
)
@click.option("--name", help="Name of the test. Its runs are named NAME-ARM-NUMBER, and NAME is their group.")
@click.option("--show-output", is_flag=True, help="Print the output of the commands while they run.")
@log_dir_option
@json_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for a comment on a pull request.")
@click.option("--html", "html_file", metavar="FILE", type=click.Path(dir_okay=False), help="Write a page with charts.")
def ab(
    run: str | None,
    arms: tuple[str, str] | None,
    pairs: int,
    name: str | None,
    show_output: bool,
    log_dir: str,
    as_json: bool,
    as_markdown: bool,
    html_file: str | None,
) -> None:
    """Judge whether a change makes training faster or slower.

    With RUN, compare the arms of a run whose training loop calls `tachograph.ab`. With --arms, run two commands one at
    a time in the order A B B A …, record each like `tacho run`, and compare the runs in pairs. After Ctrl-C, the
    report covers the complete pairs.
    """
    from tachograph.comparison import html_report, markdown_report

    if (run is None) == (arms is None):
        raise click.UsageError("name a run whose loop calls tachograph.ab, or give two commands with --arms")
    is_stopped = False
    if run is not None:
        report, groups = _compare_arms(run, log_dir)
    else:
        first, second = (_parse_arm(arm) for arm in arms or ())
        if first.name == second.name:
            raise click.BadParameter(f"both arms are called {first.name!r}", param_hint="--arms")
        test = _Test(
            (first, second), pairs, name or time.strftime("ab-%Y%m%d-%H%M%S"), log_dir, is_quiet=not show_output
        )
        is_stopped = test.run()
        report, groups = test.report()
    if html_file is not None:
        write_file(html_file, html_report([report], [groups]))
    if as_json:
        echo(json_text(msgspec.to_builtins(report)))
    elif as_markdown:
        echo(markdown_report([report]), nl=False)
    else:
        print_report(new_console(), report)
    if is_stopped:
        raise SystemExit(128 + signal.SIGINT)


def _compare_arms(run: str, log_dir: str) -> tuple[ComparisonReport, tuple[list[RunEvidence], list[RunEvidence]]]:
    from tachograph.comparison import report_arms

    report, (first, second) = report_arms(find_readable_run(run, log_dir))
    return report, ([first], [second])


def _parse_arm(text: str) -> ArmCommand:
    from tachograph.comparison import ArmCommand

    name, equals, command = text.partition("=")
    if not equals or not _ARM_NAME.fullmatch(name.strip()):
        raise click.BadParameter(
            f"{safe(text)!r}: expected NAME=COMMAND, such as 'A=python train.py'", param_hint="--arms"
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(f"{safe(text)!r}: {error}", param_hint="--arms") from error
    if not words:
        raise click.BadParameter(f"arm {name.strip()!r} has no command", param_hint="--arms")
    return ArmCommand(name.strip(), shlex.join(words))


class _Test:
    """Runs the commands of both arms in turns."""

    def __init__(
        self, arms: tuple[ArmCommand, ArmCommand], num_pairs: int, name: str, log_dir: str, *, is_quiet: bool
    ) -> None:
        from tachograph.integrations.zero_code import check_command

        for arm in arms:
            check_command(shlex.split(arm.command))
            check_run_name(_run_name(name, arm, num_pairs))
        self._arms = arms
        self._num_pairs = num_pairs
        self._name = name
        self._log_dir = log_dir
        self._is_quiet = is_quiet
        self._pairs: list[tuple[ArmRun, ArmRun]] = []

    def run(self) -> bool:
        """Run all pairs; return whether it was stopped early."""
        number = 0
        try:
            for pair in range(self._num_pairs):
                order = (0, 1) if pair % 2 == 0 else (1, 0)
                runs_by_side: dict[int, ArmRun] = {}
                for side in order:
                    number += 1
                    result, runs_by_side[side] = self._run_once(self._arms[side], number, pair + 1)
                    if _is_stopped(result):
                        raise KeyboardInterrupt
                self._pairs.append((runs_by_side[0], runs_by_side[1]))
        except KeyboardInterrupt:
            print_progress(f"stopped in run {number} of {2 * self._num_pairs}")
            return True
        return False

    def report(self) -> tuple[ComparisonReport, tuple[list[RunEvidence], list[RunEvidence]]]:
        """Compare the pairs that are complete."""
        from tachograph.comparison import report_pairs

        if not self._pairs:
            print_progress("no pair of runs is complete: there is nothing to compare")
            raise SystemExit(128 + signal.SIGINT)
        first, second = ([pair[side].evidence for pair in self._pairs] for side in (0, 1))
        return report_pairs(self._pairs, self._arms), (first, second)

    def _run_once(self, arm: ArmCommand, number: int, pair: int) -> tuple[LaunchResult, ArmRun]:
        from tachograph.comparison import ArmRun
        from tachograph.integrations.zero_code import launch

        print_progress(f"[{number}/{2 * self._num_pairs}] {arm.name}: {arm.command}")
        settings = {"log_dir": self._log_dir, "group": self._name}
        variables = {"TACHO_AB_TEST": self._name, "TACHO_AB_ARM": arm.name}
        name = _run_name(self._name, arm, pair)
        command = shlex.split(arm.command)
        started_s = time.monotonic()
        with _redirected_output(is_quiet=self._is_quiet):
            result = launch(command, name=name, tags=_tags(arm), settings=settings, variables=variables)
        duration_s = time.monotonic() - started_s
        if result.returncode and _is_stopped(result):
            raise KeyboardInterrupt
        if result.returncode or result.run is None:
            if self._is_quiet and result.run is not None:
                print_progress(_last_output(result.run))
            raise click.ClickException(_failure(arm, number, 2 * self._num_pairs, result))
        tag_run(result.run, _tags(arm))
        (evidence,) = load_runs([os.path.relpath(result.run, self._log_dir)], self._log_dir)
        pace = f", {len(evidence.clock.steps):,} steps" if len(evidence.clock.steps) else ", no step times"
        print_progress(f"    {duration(duration_s)}{pace}: {os.path.relpath(result.run)}")
        return result, ArmRun(evidence, duration_s)


def _run_name(name: str, arm: ArmCommand, pair: int) -> str:
    return f"{name}-{arm.name}-{pair}"


def _tags(arm: ArmCommand) -> list[str]:
    return ["ab", f"arm-{arm.name}"]


def tag_run(run: str, tags: Sequence[str]) -> None:
    """Tag a run that a program started itself, without our tags."""
    from tachograph.catalog import annotate
    from tachograph.reader import overview

    folder = find_readable_run(run)
    missing = set(tags) - set(overview(folder).tags)
    if missing:
        # A folder that cannot be written, such as one of another user, does not invalidate the test.
        with contextlib.suppress(TachographError, OSError):
            annotate(folder, [{"op": "add", "field": "tags", "value": tag} for tag in sorted(missing)])


def _failure(arm: ArmCommand, number: int, total: int, result: LaunchResult) -> str:
    if result.run is None:
        return f"run {number} of {total} (arm {arm.name}) was not recorded: {result.reason or 'telemetry is off'}"
    code = result.returncode
    how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    run_path = shlex.quote(os.path.relpath(result.run))
    return f"run {number} of {total} (arm {arm.name}) {how}: {safe(arm.command, 500)}; see tacho show {run_path}"


def _is_stopped(result: LaunchResult) -> bool:
    return bool({signal.SIGINT, signal.SIGTERM} & set(result.signals))


def _last_output(run: str) -> str:
    """Return the last lines that a program printed, from its journal."""
    logs = read(run).latest("log")
    lines = [line for record in logs for line in str(record.get("text") or "").splitlines()[-_MAX_LINES:]]
    return "\n".join(safe(line, 1_000) for line in lines)


def print_progress(text: str) -> None:
    """Print progress on the standard error, so that the report can be piped."""
    if text:
        with contextlib.suppress(OSError):
            echo(text, err=True)


@contextlib.contextmanager
def _redirected_output(*, is_quiet: bool) -> Iterator[None]:
    """Send the output of this process, and of those it starts, to the standard error, or nowhere."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    original_descriptors = os.dup(1), os.dup(2)
    try:
        if is_quiet:
            with open_user_file(os.devnull) as null_file:
                os.dup2(null_file.fileno(), 2)
        os.dup2(2, 1)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, descriptor in zip((1, 2), original_descriptors, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
