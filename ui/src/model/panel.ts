/** The texts and numbers around a chart. */

import type { Num } from "../api";
import type { AlertMark } from "./alerts";
import { type AxisName, axisNames, metricOf } from "./axis-name";
import type { ChartLine } from "./chart-lines";
import { clock, duration, number } from "./format";

const maxTitles = 4;

export interface RunValue {
  run: string;
  value: Num | null;
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
export function emptyText(axis: AxisName, isZoomed: boolean): string {
  if (isZoomed) return "No points in this range.";
  if (axis === "step") return "No points yet.";
  return axis === "epoch" ? "No epochs were recorded with this metric." : "No points on this axis.";
}

/** The titles of some alerts, one per line. */
export function alertTitles(alerts: AlertMark[], withRun: boolean): string {
  const titles = alerts.slice(0, maxTitles).map(({ run, title }) => (withRun ? `${run}: ${title}` : title));
  if (alerts.length > maxTitles) titles.push(`and ${alerts.length - maxTitles} more`);
  return titles.join("\n");
}
