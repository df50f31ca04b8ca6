"""A comparison as Markdown, for a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tachograph.comparison._report import ComparisonReport, group_name
from tachograph.comparison._words import change_texts, lines_before_headline, noise_line, runs_text, verdict_rows

__all__ = ["MARKER", "markdown_report"]

MARKER = "<!-- tachograph-comparison -->"
"""In the first line of a report, so that a bot finds the comment that it wrote before."""
_MAX_CHARS = 60_000
_SYMBOLS = {"good": "🟢", "bad": "🔴", "same": "⚪", "open": "🟡", "": ""}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~@])")


def markdown_report(reports: Sequence[ComparisonReport]) -> str:
    """Return one or more comparisons as Markdown, of at most 60,000 characters."""
    text = "\n\n".join([MARKER, *map(_section, reports)]) + "\n"
    if len(text) <= _MAX_CHARS:
        return text
    note = "\n\n*The report is longer than a comment can be and was cut.*\n"
    shortened_text = text[: _MAX_CHARS - len(note)].rsplit("\n", 1)[0]
    return (
        shortened_text
        + "\n</details>" * (shortened_text.count("<details>") - shortened_text.count("</details>"))
        + note
    )


def _section(report: ComparisonReport) -> str:
    names = [group_name(group.runs, group.name) for group in (report.a, report.b)]
    lines = [f"{_plain(report.direction)}: {runs_text(report)}.", "", f"### {_plain(report.headline)}", ""]
    lines += [f"> **{_plain(line)}**" for line in lines_before_headline(report)]
    lines += ["", f"| | {_plain(names[0])} | {_plain(names[1])} | difference | verdict |", "|---|---|---|---|---|"]
    rows = verdict_rows(report)
    for row in rows:
        verdict = f"{_SYMBOLS[row.sign]} {_plain(row.verdict)}".strip()
        lines.append(f"| {_plain(row.title)} | {row.a} | {row.b} | {row.effect} | {verdict} |")
    lines += ["", "<details><summary>Details</summary>", ""]
    lines += [f"- {_plain(line)}" for line in (report.comparable, noise_line(report)) if line]
    lines += [f"- {_plain(row.title)}: {_plain(note)}" for row in rows for note in row.notes]
    lines += [f"- ⚠ {_plain(warning)}" for warning in report.warnings]
    if report.config_diff:
        lines += ["", "| config | before | after |", "|---|---|---|"]
        for change in report.config_diff:
            first, second = change_texts(change)
            lines.append(f"| {_plain(change.name)} | {_plain(first)} | {_plain(second)} |")
        if report.num_more_changes:
            lines.append(f"\n{report.num_more_changes} more keys differ.")
    return "\n".join([*lines, "", "</details>"])


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
