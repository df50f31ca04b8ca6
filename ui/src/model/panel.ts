/** The texts and numbers around a chart. */

import type { Num, SeriesView } from "../api";
import type { AlertMark } from "./alerts";
import { type AxisName, axisNames, metricOf } from "./axis-name";
import type { ChartLine } from "./chart-lines";
import { clock, duration, number } from "./format";
import type { ChartView } from "./route";
import { nearestPoint } from "./series";

const maxTitles = 4;

export interface RunValue {
  run: string;
  value: Num | null;
}

/** Each run's value at the cursor, or its latest value without a cursor. Values are never smoothed. */
export function legendValues(
  runs: string[],
  series: Record<string, SeriesView>,
  lines: ChartLine[],
  cursor: number | null,
): RunValue[] {
  return runs.map((run) => {
    if (cursor === null) return { run, value: series[run]?.last ?? null };
    const recorded = lines.filter((line) => line.run === run && line.isRaw);
    // The last attempt wins where attempts overlap.
    const value = recorded.reduceRight<number | null>(
      (found, line) => found ?? nearestPoint(line.points, cursor)?.y ?? null,
      null,
    );
    return { run, value };
  });
}

/** A position on the x axis, as text. */
export function positionText(x: number, axis: AxisName): string {
  const metric = metricOf(axis);
  if (metric !== null) return `${metric} ${number(x, 4)}`;
  if (axis === "time") return clock(x);
  if (axis === "relative") return duration(x);
  if (axis === "training_time") return `${duration(x)} of training`;
  const title = axisNames.find(([name]) => name === axis)?.[1] ?? axis;
  return `${title} ${axis === "step" ? number(Math.round(x)) : number(x, 4)}`;
}

/** The number of recorded values that a logarithmic scale cannot show. */
export function countNonPositive(lines: ChartLine[]): number {
  return lines
    .filter((line) => line.isRaw)
    .reduce((sum, line) => sum + line.points.y.filter((y) => y !== null && y <= 0).length, 0);
}

/** Why a chart has no points. */
export function emptyText({ x, low, high }: ChartView): string {
  if (low !== null || high !== null) return "No points in this range.";
  return x === "epoch" ? "No epochs were recorded with this metric." : "No points yet.";
}

/** The titles of some alerts, one per line. */
export function alertTitles(alerts: AlertMark[], withRun: boolean): string {
  const titles = alerts.slice(0, maxTitles).map(({ run, title }) => (withRun ? `${run}: ${title}` : title));
  if (alerts.length > maxTitles) titles.push(`and ${alerts.length - maxTitles} more`);
  return titles.join("\n");
}
