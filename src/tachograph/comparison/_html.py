"""A comparison as one HTML file without links to anything else."""

from __future__ import annotations

import html
from collections.abc import Sequence

from tachograph.comparison._evidence import RunEvidence
from tachograph.comparison._report import ComparisonReport, group_name
from tachograph.comparison._svg import overlay_svg, step_times
from tachograph.comparison._words import change_texts, lines_before_headline, noise_line, runs_text, verdict_rows

__all__ = ["html_report"]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #14853a; --bad: #c4261d; --open: #8a6d00; }
@media (prefers-color-scheme: dark) { :root { --good: #4cc46f; --bad: #ff7b72; --open: #d9b84a; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; } .open { color: var(--open); }
.first { border-left: 4px solid var(--bad); padding-left: .8rem; }
figure { margin: 1rem 0; } figcaption { font-size: .85rem; } svg { width: 100%; height: auto; }
svg text { font-size: 10px; fill: currentColor; opacity: .7; } ul { padding-left: 1.2rem; }
@media (max-width: 40rem) {
  .verdicts thead { display: none; }
  .verdicts :is(tbody, tr, th, td) { display: block; border: 0; padding: 0; white-space: normal; }
  .verdicts tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  .verdicts td::before { content: attr(data-label) ": "; opacity: .7; }
  .verdicts td:empty { display: none; }
}
"""


def html_report(
    reports: Sequence[ComparisonReport], groups: Sequence[tuple[Sequence[RunEvidence], Sequence[RunEvidence]]]
) -> str:
    """Return comparisons as a page, with charts of the runs of each.

    Args:
        reports: the comparisons.
        groups: the runs of each of them.
    """
    title = reports[0].headline if len(reports) == 1 else f"{len(reports)} comparisons"
    sections = "".join(_section(report, *runs) for report, runs in zip(reports, groups, strict=True))
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body>{sections}</body></html>\n"
    )


def _section(report: ComparisonReport, a: Sequence[RunEvidence], b: Sequence[RunEvidence]) -> str:
    names = [group_name(group.runs, group.name) for group in (report.a, report.b)]
    rows = verdict_rows(report)
    parts = [f"<p>{_text(report.direction)}: {_text(runs_text(report))}.</p>", f"<h1>{_text(report.headline)}</h1>"]
    parts += [f'<p class="first">{_text(line)}</p>' for line in lines_before_headline(report)]
    headings = (*names, "difference", "verdict")
    lines = []
    for row in rows:
        texts = zip(
            headings, ("number", "number", "number", row.sign), (row.a, row.b, row.effect, row.verdict), strict=True
        )
        cells = "".join(
            f'<td class="{kind}" data-label="{_text(label)}">{_text(text)}</td>' for label, kind, text in texts
        )
        lines.append(f'<tr><th scope="row">{_text(row.title)}</th>{cells}</tr>')
    head = "".join(f"<th>{_text(heading)}</th>" for heading in ("", *headings))
    parts.append(f'<table class="verdicts"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>')
    parts.append(
        overlay_svg(
            "Milliseconds per step", [list(map(step_times, a)), list(map(step_times, b))], names, x_title="step"
        )
    )
    parts.append(
        overlay_svg("Training loss", [[run.loss for run in a], [run.loss for run in b]], names, x_title="step")
    )
    result = report.metric("result")
    if result is not None:
        parts.append(
            overlay_svg(result.title, [[run.result for run in a], [run.result for run in b]], names, x_title="step")
        )
    parts.append(_phases(a, b, names))
    if report.config_diff:
        changes = "".join(
            "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in (change.name, *change_texts(change))) + "</tr>"
            for change in report.config_diff
        )
        more = f"<p>{report.num_more_changes} more keys differ.</p>" if report.num_more_changes else ""
        parts.append(f"<h2>Config</h2><table><tbody>{changes}</tbody></table>{more}")
    notes = [
        report.comparable,
        noise_line(report),
        *(f"{row.title}: {note}" for row in rows for note in row.notes),
        *report.warnings,
    ]
    parts.append(
        "<h2>What was assumed</h2><ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes if note) + "</ul>"
    )
    return f"<section>{''.join(parts)}</section>"


def _phases(a: Sequence[RunEvidence], b: Sequence[RunEvidence], names: Sequence[str]) -> str:
    phases = list(dict.fromkeys(phase for run in (*a, *b) for phase in run.phases_s))
    if not phases:
        return ""
    rows = ""
    for phase in phases:
        sides = [[run.phases_s[phase] for run in runs if phase in run.phases_s] for runs in (a, b)]
        cells = "".join(
            f'<td class="number">{1000 * sum(side) / len(side):.3g} ms</td>' if side else "<td>–</td>" for side in sides
        )
        rows += f'<tr><th scope="row">{_text(phase)}</th>{cells}</tr>'
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    return f"<h2>Time per step by phase</h2><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _text(text: str) -> str:
    return html.escape(text, quote=True)
