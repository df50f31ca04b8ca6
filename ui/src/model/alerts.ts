/** What rules found wrong with a run, as it is shown. */

import type { Alert, Json, RunLine, Severity, State, XAxis } from "../api";
import { bytes, duration, number, plain, words } from "./format";
import type { ChartView } from "./route";

export type AlertLook = "bad" | "warn" | "";

export const lookOf = (severity: Severity): AlertLook =>
  severity === "critical" ? "bad" : severity === "warning" ? "warn" : "";

export interface Counted {
  text: string;
  look: AlertLook;
}

/** How many alerts of a run are open, in two words; null if none is. */
export function counted(run: Pick<RunLine, "num_open_alerts" | "num_critical_alerts">): Counted | null {
  const count = run.num_open_alerts;
  if (!count) return null;
  return { text: `${number(count)} alert${count > 1 ? "s" : ""}`, look: run.num_critical_alerts ? "bad" : "warn" };
}

/** Give each alert a name that it keeps when others come, even where a journal has one name for many. */
export function keyed(alerts: Alert[]): [string, Alert][] {
  const seen = new Map<string, number>();
  return alerts.map((alert) => {
    const number = seen.get(alert.id) ?? 0;
    seen.set(alert.id, number + 1);
    return [`${alert.id} ${number}`, alert];
  });
}

/** Whether the process of a run is known to be gone: what is open then will not be resolved. */
export const isOver = (state: State): boolean => state !== "running" && state !== "stale";

/** How an alert that is not open ended: a process that ends before a resume leaves its own behind. */
export function endOf(alert: Alert): "resolved" | "left behind" {
  return alert.resolved_time !== null || alert.outcome !== "" ? "resolved" : "left behind";
}

/** How long the fault was there, or has been; `until` is now, or the end of a run that is over. Null if unknown. */
export function lasted_s(alert: Alert, until: number | null): number | null {
  const end = alert.is_open ? until : alert.resolved_time;
  if (alert.opened_time === null || end === null) return null;
  return Math.max(0, end - alert.opened_time);
}

/** Where an alert lies on the axis of steps: `step 1200`, `steps 1200 … 1350`. */
export function stepsOf(alert: Alert): string {
  const [first, last] = [alert.opened_step, alert.resolved_step];
  if (first === null) return "";
  return last === null || last === first ? `step ${number(first)}` : `steps ${number(first)} … ${number(last)}`;
}

/** The steps at which the fault came back, as far as they are known. */
export function cameBack(alert: Alert): string {
  if (alert.num_occurrences < 2) return "";
  const steps = alert.occurrences.map((occurrence) => occurrence["step"]).filter((step) => typeof step === "number");
  return `${alert.num_occurrences > steps.length && steps.length ? "… " : ""}${steps.map((step) => number(step)).join(", ")}`;
}

/** Evidence as names and texts, with numbers as people read them. */
export function evidenceOf(alert: Alert): [string, string][] {
  return Object.entries(alert.evidence)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => {
      for (const [unit, told] of units)
        if (name.endsWith(unit) && typeof value === "number") return [words(name.slice(0, -unit.length)), told(value)];
      return [words(name), texted(value)];
    });
}

const units: [string, (value: number) => string][] = [
  ["_s", duration],
  ["_ms", (value) => duration(value / 1000)],
  ["_bytes", bytes],
];

function texted(value: Json): string {
  if (value === "NaN" || value === "Infinity" || value === "-Infinity") return number(value);
  if (typeof value === "string") return value.replace(/^\\(?=\\*(NaN|-?Infinity)$)/, "");
  return Array.isArray(value) ? value.map(texted).join(", ") : plain(value);
}

/** The metric that an alert is about. */
export function metricOf(alert: Alert): string | null {
  const metric = alert.evidence["metric"];
  return typeof metric === "string" && metric !== "" ? metric : null;
}

/** What names a rule to a shell: a journal may say anything, and nobody is to copy that into a terminal. */
export function explaining(rule: string): string | null {
  return /^[a-z][a-z0-9_-]{0,63}$/.test(rule) ? `tacho doctor --explain ${rule}` : null;
}

/** A view of the charts with the metric of an alert, around the steps concerned; null if nothing says where. */
export function chartOf(alert: Alert, view: ChartView, lastStep: number | null): ChartView | null {
  const metric = metricOf(alert);
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
    return { ...view, x: "step", search, low: Math.max(Math.min(0, low), low - margin), high: end };
  }
  const times = known([alert.opened_time, alert.updated_time, alert.resolved_time]);
  if (times.length > 0) {
    const [low, high] = [Math.min(...times), Math.max(...times)];
    const margin = Math.max(60, (high - low) / 2);
    return { ...view, x: "time", search, low: low - margin, high: high + margin };
  }
  return metric === null ? null : { ...view, search, low: null, high: null };
}

const known = (values: (Json | undefined)[]): number[] =>
  values.filter((value) => typeof value === "number" && Number.isFinite(value)) as number[];

/** An alert on the axis of a chart. */
export interface AlertMark {
  run: string;
  title: string;
  look: AlertLook;
  x: number;
  /** Where it ended; null if it has not. */
  end: number | null;
}

export interface AlertsOfRun {
  run: string;
  alerts: Alert[];
  started: number | null;
}

/** The alerts that belong on the chart of a metric: those that name it, and those that name none but matter. */
export function marksOf({ run, alerts, started }: AlertsOfRun, metric: string, x: XAxis): AlertMark[] {
  if (x === "epoch") return []; // alerts are not told by epochs
  const found: AlertMark[] = [];
  for (const alert of alerts) {
    const about = metricOf(alert);
    if (about === null ? alert.severity === "info" : about !== metric) continue;
    const shift = x === "relative" ? started : 0;
    const [first, last, updated] =
      x === "step"
        ? [alert.opened_step, alert.resolved_step, alert.updated_step]
        : [alert.opened_time, alert.resolved_time, alert.updated_time];
    if (first === null || shift === null) continue;
    const end = alert.is_open ? null : Math.max(first, last ?? updated ?? first) - shift;
    found.push({ run, title: alert.title, look: lookOf(alert.severity), x: first - shift, end });
  }
  return found;
}

/** The stretches of an axis in which something was wrong: where alerts overlap, they are one. */
export function bandsOf(marks: AlertMark[]): [number, number][] {
  const bands: [number, number][] = [];
  for (const { x, end } of marks.toSorted((a, b) => a.x - b.x)) {
    const last = bands.at(-1);
    if (last && x <= last[1]) last[1] = Math.max(last[1], end ?? Infinity);
    else bands.push([x, end ?? Infinity]);
  }
  return bands;
}

/** The marks that a cursor points at, or nearly so. */
export function marksAt(marks: AlertMark[], cursor: number | null, width: number): AlertMark[] {
  return cursor === null ? [] : marks.filter((mark) => Math.abs(mark.x - cursor) <= 0.015 * width);
}
