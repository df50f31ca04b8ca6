/** Lines on their way from the server to a chart. */

import type { Line, Mark, Series } from "../api";

export interface Points {
  x: number[];
  y: (number | null)[];
}

/**
 * Smooth a line exponentially, as if over every recorded point: a stretch of which only the mean is known counts as many
 * times as it has points. The beginning is not pulled towards 0, and the line is broken where the raw one is.
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
    const place = x[index] as number;
    const point = y[index] ?? null;
    while (next < breaks.length && (breaks[next] as number) < place) {
      if (index > 0 && result.y.at(-1) !== null && (breaks[next] as number) > (x[index - 1] as number))
        put(result, breaks[next] as number, null);
      next++;
    }
    if (point === null) {
      put(result, place, null);
      continue;
    }
    const kept = weight ** (means ? (line.mean_count[index] ?? 1) : 1);
    value = kept * value + (1 - kept) * point;
    known = kept * known + (1 - kept);
    put(result, place, known > 0 ? value / known : point);
  }
  return result;
}

function put(points: Points, x: number, y: number | null): void {
  points.x.push(x);
  points.y.push(y);
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
  return { name: known.name, last: more.last, lines, marks: [...known.marks, ...more.marks] };
}

/** Two lines as one, in order. */
export function joined(line: Line, added: Line): Line {
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

export interface Found {
  x: number;
  y: number;
}

/** The point of a line nearest to a place; null beyond its ends, and where it is broken. */
export function pointAt(points: Points, x: number): Found | null {
  const last = points.x.length - 1;
  if (last < 0) return null;
  const [first, end] = [points.x[0] as number, points.x[last] as number];
  const slack = last > 0 ? (2 * (end - first)) / last : Infinity; // a cursor between two pixels is not beyond the end
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

/** Values of several lines over one axis: one array of places, and for each line what it has there. */
export type Aligned = [number[], ...(number | null | undefined)[][]];

/**
 * Bring lines onto one axis, as the chart wants them. Where a line has several points at a place, the place is there as
 * often; where it has none, it has `undefined`, which does not break it.
 */
export function align(lines: Points[]): Aligned {
  const places: number[] = [];
  const columns = lines.map((): (number | null | undefined)[] => []);
  const at = new Uint32Array(lines.length);
  for (;;) {
    const place = lines.reduce((least, { x }, line) => Math.min(least, x[at[line] as number] ?? Infinity), Infinity);
    if (place === Infinity) break;
    const first = places.length;
    lines.forEach(({ x, y }, line) => {
      for (let row = first; x[at[line] as number] === place; row++) {
        places[row] = place;
        (columns[line] as (number | null)[])[row] = y[at[line] as number] ?? null;
        at[line] = (at[line] as number) + 1;
      }
    });
  }
  for (const column of columns) column.length = places.length;
  return [places, ...columns];
}
