/** Series of points: smoothing, merging and aligning them for a chart. */

import type { Line, Mark, SeriesView } from "../api";

export interface Points {
  x: number[];
  y: (number | null)[];
}

/**
 * Return the exponential moving average over every recorded point.
 *
 * Where the server left out points, it sends the means of equal buckets: a mean of n points counts n times. The average
 * is corrected for its start, so that it is not pulled towards 0, and it has gaps where the recorded line has gaps.
 */
export function smooth(line: Line, weight: number, marks: Mark[] = []): Points {
  const breaks = line.mean_x.length > 0 ? marks.map((mark) => mark.x).sort((a, b) => a - b) : [];
  const means = line.mean_x.length > 0;
  const x = means ? line.mean_x : line.x;
  const y: (number | null)[] = means ? line.mean_y : line.y;
  const result: Points = { x: [], y: [] };
  let value = 0;
  let known = 0;
  let next = 0;
  for (let index = 0; index < x.length; index++) {
    const position = x[index] as number;
    const point = y[index] ?? null;
    while (next < breaks.length && (breaks[next] as number) < position) {
      if (index > 0 && result.y.at(-1) !== null && (breaks[next] as number) > (x[index - 1] as number))
        put(result, breaks[next] as number, null);
      next++;
    }
    if (point === null) {
      put(result, position, null);
      continue;
    }
    const kept = weight ** (means ? (line.mean_count[index] ?? 1) : 1);
    value = kept * value + (1 - kept) * point;
    known = kept * known + (1 - kept);
    put(result, position, known > 0 ? value / known : point);
  }
  return result;
}

function put(points: Points, x: number, y: number | null): void {
  points.x.push(x);
  points.y.push(y);
}

/** Append newer points to a series. */
export function merge(known: SeriesView, more: SeriesView): SeriesView {
  const lines = known.lines.map((line) => ({ ...line }));
  for (const added of more.lines) {
    const index = lines.findIndex((line) => line.stream === added.stream && line.attempt === added.attempt);
    const line = lines[index];
    if (!line) lines.push(added);
    else lines[index] = joinLines(line, added);
  }
  return { name: known.name, last: more.last, lines, marks: [...known.marks, ...more.marks] };
}

/** Join two lines, sorted by x. */
export function joinLines(line: Line, added: Line): Line {
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

export function numPoints(series: SeriesView): number {
  return series.lines.reduce((sum, line) => sum + line.x.length, 0);
}

export interface PlottedPoint {
  x: number;
  y: number;
}

/** The point of a line nearest to x; null past its ends and in gaps. */
export function nearestPoint(points: Points, x: number): PlottedPoint | null {
  const last = points.x.length - 1;
  if (last < 0) return null;
  const [first, end] = [points.x[0] as number, points.x[last] as number];
  const slack = last > 0 ? (2 * (end - first)) / last : Infinity; // a cursor between two pixels is not past the end
  if (x < first - slack || x > end + slack) return null;
  let [low, high] = [0, last];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((points.x[middle] as number) < x) low = middle + 1;
    else high = middle;
  }
  const before = Math.max(0, low - 1);
  const nearest = x - (points.x[before] as number) < (points.x[low] as number) - x ? before : low;
  const y = points.y[nearest];
  return y === null || y === undefined ? null : { x: points.x[nearest] as number, y };
}

/** Several lines on one x axis: the x values, then the y values of each line. */
export type Aligned = [number[], ...(number | null | undefined)[][]];

/**
 * Align lines on one x axis, as uPlot requires.
 *
 * An x value is repeated if a line has several points there. A line without a point there has `undefined`, which uPlot
 * skips, unlike `null`, which is a gap.
 */
export function align(lines: Points[]): Aligned {
  const positions: number[] = [];
  const columns = lines.map((): (number | null | undefined)[] => []);
  const at = new Uint32Array(lines.length);
  for (;;) {
    const position = lines.reduce((least, { x }, line) => Math.min(least, x[at[line] as number] ?? Infinity), Infinity);
    if (position === Infinity) break;
    const first = positions.length;
    lines.forEach(({ x, y }, line) => {
      for (let row = first; x[at[line] as number] === position; row++) {
        positions[row] = position;
        (columns[line] as (number | null)[])[row] = y[at[line] as number] ?? null;
        at[line] = (at[line] as number) + 1;
      }
    });
  }
  for (const column of columns) column.length = positions.length;
  return [positions, ...columns];
}
