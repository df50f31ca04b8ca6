/** Texts, views and chart marks for alerts. */

import type {
  AlertsPage,
  AlertView,
  DumpCause,
  Json,
  MarkView,
  MetricView,
  RunState,
  RunSummary,
  Severity,
} from "../api";
import type { AxisName } from "./axis-name";
import { bytes, duration, number, plain, words } from "./format";
import type { ChartView } from "./route";
import { type Scale, shareOf } from "./scale";

export type AlertTone = "bad" | "warn" | "";

export const toneOf = (severity: Severity): AlertTone =>
  severity === "critical" ? "bad" : severity === "warning" ? "warn" : "";

/** The most severe tone of some marks. */
export function worstTone(marks: AlertMark[]): AlertTone {
  return marks.some((mark) => mark.tone === "bad") ? "bad" : marks.some((mark) => mark.tone === "warn") ? "warn" : "";
}

export interface AlertBadge {
  text: string;
  tone: AlertTone;
}

/** The number of open alerts as a badge; null without open alerts. */
export function alertBadge(run: Pick<RunSummary, "num_open_alerts" | "num_critical_alerts">): AlertBadge | null {
  const count = run.num_open_alerts;
  if (!count) return null;
  return { text: `${number(count)} alert${count > 1 ? "s" : ""}`, tone: run.num_critical_alerts ? "bad" : "warn" };
}

/** The causes of open alerts that are known, the worst alert first; each once. */
export function openCauses(alerts: AlertView[]): DumpCause[] {
  const causes = alerts.flatMap(({ is_open, cause }) => (is_open && cause ? [cause] : []));
  return causes.filter(({ text }, index) => causes.findIndex((other) => other.text === text) === index);
}

/** What the rules found, as a sentence. */
export function verdict(
  { num_open, num_critical, alerts }: Pick<AlertsPage, "num_open" | "num_critical" | "alerts">,
  metrics: Pick<MetricView, "name" | "signal">[],
  state: RunState,
): string {
  if (num_open > 0) {
    const critical = num_critical > 0 ? `, ${number(num_critical)} critical` : "";
    const when = hasEnded(state) ? " when the run ended" : "";
    return `${number(num_open)} open alert${num_open > 1 ? "s" : ""}${when}${critical}:`;
  }
  if (metrics.length > 0 && !metrics.some(({ name, signal }) => signal === "loss" || name === "window/latest_loss"))
    return "No alerts, but most rules need a training loss, and no metric has one of its usual names.";
  return noAlertsText(state === "failed" || state === "crashed", alerts.length);
}

/** That no alert is open; of a run that failed this is no good news, so it says what was checked. */
export function noAlertsText(hasFailed: boolean, numClosed: number): string {
  const closed = numClosed > 0 ? `, ${number(numClosed)} closed` : "";
  return hasFailed ? `The run failed; its metrics have no open alerts${closed}.` : `No open alerts${closed}.`;
}

/** Give each alert a stable key. Ids in a journal are not guaranteed to be unique. */
export function withKeys(alerts: AlertView[]): [string, AlertView][] {
  const seen = new Map<string, number>();
  return alerts.map((alert) => {
    const number = seen.get(alert.id) ?? 0;
    seen.set(alert.id, number + 1);
    return [`${alert.id} ${number}`, alert];
  });
}

/** Whether the process of a run has ended: its open alerts will not be resolved any more. */
export const hasEnded = (state: RunState): boolean => state !== "running" && state !== "stale";

/** Why a run that has ended has no metrics. */
export const withoutMetrics = (state: RunState): string =>
  state === "finished" ? "The run recorded no metrics." : "The run ended before it recorded any metrics.";

/** Why an alert is not open: it was resolved, or its process ended and the run was resumed. */
export function closedAs(alert: AlertView): "resolved" | "unresolved" {
  return alert.resolved_time !== null || alert.outcome !== "" ? "resolved" : "unresolved";
}

/** How long an alert has been open, or was; `until` is now or the end of the run. Null if unknown. */
export function openDurationSeconds(alert: AlertView, until: number | null): number | null {
  const end = alert.is_open ? until : alert.resolved_time;
  if (alert.opened_time === null || end === null) return null;
  return Math.max(0, end - alert.opened_time);
}

/** The steps between opened and resolved: `step 1200`, `steps 1200 … 1350`. */
export function stepRange(alert: AlertView): string {
  const [first, last] = [alert.opened_step, alert.resolved_step];
  if (first === null) return "";
  return last === null || last === first ? `step ${number(first)}` : `steps ${number(first)} … ${number(last)}`;
}

/** The steps at which the finding recurred, as far as they are known. */
export function recurrenceSteps(alert: AlertView): string {
  if (alert.num_occurrences < 2) return "";
  const steps = alert.occurrences.map((occurrence) => occurrence["step"]).filter((step) => typeof step === "number");
  return `${alert.num_occurrences > steps.length && steps.length ? "… " : ""}${steps.map((step) => number(step)).join(", ")}`;
}

/** Evidence as names and formatted values. */
export function evidenceRows(alert: AlertView): [string, string][] {
  return Object.entries(alert.evidence)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => {
      if (name === "expected" && Array.isArray(value)) return ["expected", rangeText(value)];
      for (const [suffix, format] of units)
        if (name.endsWith(suffix) && typeof value === "number")
          return [words(name.slice(0, -suffix.length)), format(value)];
      return [words(name), formatEvidence(value)];
    });
}

const units: [string, (value: number) => string][] = [
  ["_s", duration],
  ["_ms", (value) => duration(value / 1000)],
  ["_bytes", bytes],
];

/** A range whose ends may be missing: `1.2 to 3`, `at most 3`, `at least 1.2`. */
function rangeText([low = null, high = null]: Json[]): string {
  if (low === null) return `at most ${formatEvidence(high)}`;
  return high === null ? `at least ${formatEvidence(low)}` : `${formatEvidence(low)} to ${formatEvidence(high)}`;
}

function formatEvidence(value: Json): string {
  if (value === "NaN" || value === "Infinity" || value === "-Infinity") return number(value);
  if (typeof value === "string") return value.replace(/^\\(?=\\*(NaN|-?Infinity)$)/, "");
  return Array.isArray(value) ? value.map(formatEvidence).join(", ") : plain(value);
}

/** The metric that an alert names in its evidence. */
export function affectedMetric(alert: AlertView): string | null {
  const metric = alert.evidence["metric"];
  return typeof metric === "string" && metric !== "" ? metric : null;
}

/** The command that explains a rule. Null for a name that would not be safe to paste into a shell. */
export function explainCommand(rule: string): string | null {
  return /^[a-z][a-z0-9_-]{0,63}$/.test(rule) ? `tacho doctor --explain ${rule}` : null;
}

/** A view of the charts with the affected metric and steps of an alert; null if the alert names neither. */
export function chartViewFor(alert: AlertView, view: ChartView, lastStep: number | null): ChartView | null {
  const metric = affectedMetric(alert);
  const search = metric === null ? "" : `/^${metric.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")}$/`;
  const steps = known([
    alert.opened_step,
    alert.updated_step,
    alert.resolved_step,
    ...alert.occurrences.map((occurrence) => occurrence["step"]),
  ]);
  if (steps.length > 0) {
    const [low, high] = [Math.min(...steps), Math.max(...steps)];
    const margin = Math.ceil(Math.max(20, (high - low) / 2, (lastStep ?? high) / 100));
    const end = Math.max(high + 1, Math.min(high + margin, lastStep ?? Infinity));
    return {
      ...view,
      x: "step",
      usesDefinedAxes: false,
      search,
      low: Math.max(Math.min(0, low), low - margin),
      high: end,
    };
  }
  const times = known([alert.opened_time, alert.updated_time, alert.resolved_time]);
  if (times.length > 0) {
    const [low, high] = [Math.min(...times), Math.max(...times)];
    const margin = Math.max(60, (high - low) / 2);
    return { ...view, x: "time", search, low: low - margin, high: high + margin };
  }
  return metric === null ? null : { ...view, search, low: null, high: null };
}

/** What a chart of the evidence shows: the metric around the alert, and what the rule expected. */
export interface EvidenceView {
  metric: string;
  low: number;
  high: number;
  mark: AlertMark;
  /** The values that the rule expected; null on a side without a limit. */
  expected: { low: number | null; high: number | null } | null;
}

/** The chart of an alert's evidence; null if the alert names no metric or has no step. */
export function evidenceView(run: string, alert: AlertView, lastStep: number | null): EvidenceView | null {
  const metric = affectedMetric(alert);
  if (metric === null || alert.opened_step === null) return null;
  const ofEvidence = ["from_step", "since_step", "best_step", "peak_step"].map((name) => alert.evidence[name]);
  const onset = known(ofEvidence.slice(0, 2))[0] ?? alert.opened_step;
  const steps = known([alert.opened_step, alert.updated_step, alert.resolved_step, ...ofEvidence]);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const margin = Math.ceil(Math.max(40, last - first, (lastStep ?? last) / 20));
  const end = alert.is_open ? null : (alert.resolved_step ?? alert.updated_step ?? onset);
  return {
    metric,
    low: Math.max(Math.min(0, first), first - margin),
    high: Math.max(last + 1, Math.min(last + margin, lastStep ?? Infinity)),
    mark: { run, title: alert.title, tone: toneOf(alert.severity), x: onset, end },
    expected: expectedRange(alert),
  };
}

function expectedRange(alert: AlertView): EvidenceView["expected"] {
  const expected = alert.evidence["expected"];
  if (!Array.isArray(expected) || expected.length !== 2) return null;
  const [low, high] = expected.map((end) => (typeof end === "number" ? end : null));
  return low == null && high == null ? null : { low: low ?? null, high: high ?? null };
}

/** The annotation that says whether an alert is right. */
export const judgementField = (alert: Pick<AlertView, "rule" | "opened_step">): string =>
  `alert.${alert.rule}@${alert.opened_step ?? ""}`;

const known = (values: (Json | undefined)[]): number[] =>
  values.filter((value) => typeof value === "number" && Number.isFinite(value)) as number[];

/** An alert, or what somebody remarked about a step, on the x axis of a chart. */
export interface AlertMark {
  run: string;
  title: string;
  tone: AlertTone;
  x: number;
  /** Where it ended; null while it is open. */
  end: number | null;
}

export interface RunAlerts {
  run: string;
  alerts: AlertView[];
  remarks: MarkView[];
  started: number | null;
}

/** The marks for remarks about steps, in every chart; they have no place on other axes. */
export function remarkMarks({ run, remarks }: RunAlerts, x: AxisName): AlertMark[] {
  if (x !== "step") return [];
  return remarks.map(({ text, global_step }) => ({ run, title: text, tone: "", x: global_step, end: global_step }));
}

/** The marks for the chart of a metric: alerts that name it, and alerts above `info` that name no metric. */
export function alertMarks({ run, alerts, started }: RunAlerts, metric: string, x: AxisName): AlertMark[] {
  if (!["step", "relative", "time"].includes(x)) return []; // alerts have a step and a time
  const found: AlertMark[] = [];
  for (const alert of alerts) {
    const about = affectedMetric(alert);
    if (about === null ? alert.severity === "info" : about !== metric) continue;
    const shift = x === "relative" ? started : 0;
    const [first, last, updated] =
      x === "step"
        ? [alert.opened_step, alert.resolved_step, alert.updated_step]
        : [alert.opened_time, alert.resolved_time, alert.updated_time];
    if (first === null || shift === null) continue;
    const end = alert.is_open ? null : Math.max(first, last ?? updated ?? first) - shift;
    found.push({ run, title: alert.title, tone: toneOf(alert.severity), x: first - shift, end });
  }
  return found;
}

/** The ranges in which alerts were open, with overlapping ranges merged. */
export function mergeBands(marks: AlertMark[]): [number, number][] {
  const bands: [number, number][] = [];
  for (const { x, end } of marks.toSorted((a, b) => a.x - b.x)) {
    const last = bands.at(-1);
    if (last && x <= last[1]) last[1] = Math.max(last[1], end ?? Infinity);
    else bands.push([x, end ?? Infinity]);
  }
  return bands;
}

/** The marks close to the cursor on the x axis. */
export function marksNear(marks: AlertMark[], cursor: number | null, scale: Scale): AlertMark[] {
  if (cursor === null) return [];
  return marks.filter((mark) => Math.abs(shareOf(scale, mark.x) - shareOf(scale, cursor)) <= 0.015);
}
