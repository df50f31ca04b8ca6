/** The x axis of a chart: one that every run has, or any metric. The address writes a metric as `metric:NAME`. */

import type { XAxis } from "../api";

export type AxisName = XAxis | `metric:${string}`;

const prefix = "metric:";

export const axisNames: [XAxis, string][] = [
  ["step", "step"],
  ["relative_step", "relative step"],
  ["samples", "samples"],
  ["tokens", "tokens"],
  ["epoch", "epoch"],
  ["training_time", "training time"],
  ["relative", "elapsed time"],
  ["time", "wall clock"],
];

export const metricAxis = (metric: string): AxisName => `${prefix}${metric}`;

/** The metric of an axis; null if it is none. */
export const metricOf = (axis: AxisName): string | null =>
  axis.startsWith(prefix) && axis.length > prefix.length ? axis.slice(prefix.length) : null;

/** The axis that an address names; null if there is none. */
export function readAxis(text: string | null): AxisName | null {
  if (text?.startsWith(prefix) && text.length > prefix.length) return text as AxisName;
  return axisNames.find(([axis]) => axis === text)?.[0] ?? null;
}

/** The axis as the API names it. */
export function axisQuery(axis: AxisName): { x: XAxis; x_metric: string | null } {
  const metric = metricOf(axis);
  return metric === null ? { x: axis as XAxis, x_metric: null } : { x: "step", x_metric: metric };
}

const ascending = new WeakMap<ArrayLike<number>, boolean>();

/** Whether positions never decrease; a metric as x axis may. The answer is kept for as long as the array is. */
export function isAscending(x: ArrayLike<number>): boolean {
  let answer = ascending.get(x);
  if (answer === undefined) {
    answer = true;
    for (let index = 1; answer && index < x.length; index++) answer = (x[index] as number) >= (x[index - 1] as number);
    ascending.set(x, answer);
  }
  return answer;
}
