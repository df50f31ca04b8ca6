/** Lines on their way from the server to a chart. */

import type { Line, Series } from "../api";

export interface Points {
  x: number[];
  y: (number | null)[];
}

/**
 * Smooth a line exponentially, as if over every recorded point: a stretch of which only the mean is known counts as many
 * times as it has points. The beginning is not pulled towards 0.
 */
export function smooth(line: Line, weight: number): Points {
  const means = line.mean_x.length > 0;
  const x = means ? line.mean_x : line.x;
  const y: (number | null)[] = means ? line.mean_y : line.y;
  const result: (number | null)[] = [];
  let value = 0;
  let known = 0;
  for (let index = 0; index < x.length; index++) {
    const point = y[index] ?? null;
    if (point === null) {
      result.push(null);
      continue;
    }
    const kept = weight ** (means ? (line.mean_count[index] ?? 1) : 1);
    value = kept * value + (1 - kept) * point;
    known = kept * known + (1 - kept);
    result.push(known > 0 ? value / known : point);
  }
  return { x, y: result };
}

/** Add what was recorded since to what is known. */
export function merge(known: Series, more: Series): Series {
  const lines = known.lines.map((line) => ({ ...line }));
  for (const added of more.lines) {
    const place = lines.findIndex((line) => line.stream === added.stream && line.attempt === added.attempt);
    const line = lines[place];
    if (!line) lines.push(added);
    else lines[place] = joined(line, added);
  }
  return { name: known.name, lines, marks: [...known.marks, ...more.marks] };
}

function joined(line: Line, added: Line): Line {
  const last = line.x[line.x.length - 1];
  let x = [...line.x, ...added.x];
  let y = [...line.y, ...added.y];
  if (last !== undefined && added.x[0] !== undefined && added.x[0] < last) [x, y] = sorted(x, y);
  const result = { ...line, x, y, num_points: line.num_points + added.num_points };
  if (line.mean_x.length > 0) {
    const [from, values, counts] =
      added.mean_x.length > 0
        ? [added.mean_x, added.mean_y, added.mean_count]
        : [added.x, added.y, added.x.map(() => 1)];
    const kept = from.map((_, index) => index).filter((index) => values[index] !== null);
    result.mean_x = [...line.mean_x, ...kept.map((index) => from[index] as number)];
    result.mean_y = [...line.mean_y, ...kept.map((index) => values[index] as number)];
    result.mean_count = [...line.mean_count, ...kept.map((index) => counts[index] as number)];
  }
  return result;
}

function sorted(x: number[], y: (number | null)[]): [number[], (number | null)[]] {
  const order = x.map((_, index) => index).sort((a, b) => (x[a] as number) - (x[b] as number) || a - b);
  return [order.map((index) => x[index] as number), order.map((index) => y[index] ?? null)];
}

export function numPoints(series: Series): number {
  return series.lines.reduce((sum, line) => sum + line.x.length, 0);
}

/** The value of a line at a place: that of the nearest point. */
export function valueAt(points: Points, x: number): number | null {
  let low = 0;
  let high = points.x.length - 1;
  if (high < 0) return null;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((points.x[middle] as number) < x) low = middle + 1;
    else high = middle;
  }
  const before = Math.max(0, low - 1);
  const nearer = x - (points.x[before] as number) < (points.x[low] as number) - x ? before : low;
  return points.y[nearer] ?? points.y[low] ?? points.y[before] ?? null;
}
