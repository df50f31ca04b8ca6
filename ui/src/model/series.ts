/** Series of points: smoothing and merging them for a chart. */

import type { Line, Mark, SeriesView } from "../api";
import { isAscending } from "./axis-name";

export interface Points {
  x: number[];
  y: (number | null)[];
}

/**
 * Smooth a line: at each point, fit a straight line to its neighbours and take the value of the fit there.
 *
 * The weight of a neighbour falls by the factor `weight` with every point between them, on both sides. A fit of
 * constants, such as a moving average of the past, would lag behind a line that rises or falls; this one leaves a
 * straight line where it is, up to both ends. The sums that a fit needs are updated from point to point, in one pass
 * over the line in each direction.
 *
 * Next to a spike, such as the first step of a run, a straight line overshoots: it would give negative times. So the
 * result is limited to the range of the neighbours whose weight is at least a hundredth (`limitsAround`).
 *
 * Where the server left out points, it sends the means of equal buckets: a mean of n points counts n times. The smoothed
 * line has gaps where the recorded line has gaps.
 */
export function smooth(line: Line, weight: number, marks: Mark[] = []): Points {
  const hasMeans = line.mean_x.length > 0;
  const x = hasMeans ? line.mean_x : line.x;
  const y: (number | null)[] = hasMeans ? line.mean_y : line.y;
  const counts = hasMeans ? line.mean_count : [];
  const before = sumsTo(x, y, counts, weight, 0, 1);
  const after = sumsTo(x, y, counts, weight, x.length - 1, -1);
  const limits = limitsAround(y, counts, weight);
  const breaks = hasMeans ? marks.map((mark) => mark.x).sort((a, b) => a - b) : [];
  const result: Points = { x: [], y: [] };
  let next = 0;
  for (let index = 0; index < x.length; index++) {
    const position = x[index] as number;
    const point = y[index] ?? null;
    while (next < breaks.length && (breaks[next] as number) < position) {
      if (index > 0 && result.y.at(-1) !== null && (breaks[next] as number) > (x[index - 1] as number))
        put(result, breaks[next] as number, null);
      next++;
    }
    const fitted = point === null ? null : fitAt(index, point, counts[index] ?? 1, weight, before, after);
    put(
      result,
      position,
      fitted === null ? null : Math.min(limits.high[index] as number, Math.max(limits.low[index] as number, fitted)),
    );
  }
  return result;
}

/** The sums of w, w·dx, w·dx², w·y and w·dx·y over the points before each point, with dx from that point. */
type Sums = [Float64Array, Float64Array, Float64Array, Float64Array, Float64Array];

const massOf = (count: number, weight: number): number => (weight > 0 ? (1 - weight ** count) / (1 - weight) : 1);

/** Sum over the points before each point, in the order given by `first` and `step`, without the point itself. */
function sumsTo(
  x: number[],
  y: (number | null)[],
  counts: number[],
  weight: number,
  first: number,
  step: 1 | -1,
): Sums {
  const make = (): Float64Array => new Float64Array(x.length);
  const sums: Sums = [make(), make(), make(), make(), make()];
  let [s0, s1, s2, t0, t1] = [0, 0, 0, 0, 0];
  for (let index = first; index >= 0 && index < x.length; index += step) {
    const moved = index === first ? 0 : (x[index] as number) - (x[index - step] as number);
    // Seen from the next point, all distances grow by `moved`.
    t1 -= moved * t0;
    s2 += moved * (moved * s0 - 2 * s1);
    s1 -= moved * s0;
    const kept = weight;
    [s0, s1, s2, t0, t1] = [kept * s0, kept * s1, kept * s2, kept * t0, kept * t1];
    sums[0][index] = s0;
    sums[1][index] = s1;
    sums[2][index] = s2;
    sums[3][index] = t0;
    sums[4][index] = t1;
    const value = y[index] ?? null;
    if (value === null) continue;
    const count = counts[index] ?? 1;
    // The points of a bucket also lie between its neighbours.
    const across = weight ** (count - 1);
    const mass = massOf(count, weight);
    [s0, s1, s2, t0, t1] = [across * s0 + mass, across * s1, across * s2, across * t0 + mass * value, across * t1];
  }
  return sums;
}

function fitAt(index: number, value: number, count: number, weight: number, before: Sums, after: Sums): number {
  const mass = massOf(count, weight);
  const at = (which: 0 | 1 | 2 | 3 | 4): number => (before[which][index] as number) + (after[which][index] as number);
  const [s0, s1, s2, t0, t1] = [mass + at(0), at(1), at(2), mass * value + at(3), at(4)];
  const spread = s0 * s2 - s1 * s1;
  // Without a spread of positions there is no slope to fit.
  return spread > 1e-12 * s0 * s2 ? (s2 * t0 - s1 * t1) / spread : t0 / s0;
}

/** Neighbours with less of the weight than this do not count as contributing to a smoothed value. */
const minShare = 0.01;

/** The lowest and the highest value among the neighbours that contribute to each smoothed value. */
function limitsAround(
  y: (number | null)[],
  counts: number[],
  weight: number,
): { low: Float64Array; high: Float64Array } {
  const reach = weight > 0 ? Math.log(minShare) / Math.log(weight) : 0;
  // The middle of each bucket, counted in recorded points.
  const middles = new Float64Array(y.length);
  let total = 0;
  for (let index = 0; index < y.length; index++) {
    const count = counts[index] ?? 1;
    middles[index] = total + count / 2;
    total += count;
  }
  return { low: extremesWithin(y, middles, reach, -1), high: extremesWithin(y, middles, reach, 1) };
}

/** The highest value within `reach` of each place, or with a `sign` of -1 the lowest; one pass with a sliding window. */
function extremesWithin(y: (number | null)[], places: Float64Array, reach: number, sign: 1 | -1): Float64Array {
  const extremes = new Float64Array(y.length).fill(Number.NaN);
  /** The indexes of values that are further out than all later ones in the window. */
  const queue = new Int32Array(y.length);
  let [first, end, next] = [0, 0, 0];
  for (let index = 0; index < y.length; index++) {
    const place = places[index] as number;
    for (; next < y.length && (places[next] as number) - place <= reach; next++) {
      const value = y[next] ?? null;
      if (value === null) continue;
      while (end > first && sign * (y[queue[end - 1] as number] as number) <= sign * value) end--;
      queue[end++] = next;
    }
    while (first < end && place - (places[queue[first] as number] as number) > reach) first++;
    if (first < end) extremes[index] = y[queue[first] as number] as number;
  }
  return extremes;
}

/** Smooth points of which none were left out; without a weight, gently. */
export function smoothPoints(points: Points, weight: number | null): Points {
  const line = {
    stream: "",
    attempt: 0,
    ...points,
    mean_x: [],
    mean_y: [],
    mean_count: [],
    num_points: points.x.length,
  };
  return smooth(line, weight ?? defaultWeight(points.x.length));
}

/** The weight that smooths over about a hundredth of the points on each side: gentle at any number of points. */
export function defaultWeight(numPoints: number): number {
  return Math.exp(-100 / Math.max(1, numPoints));
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
  return {
    name: known.name,
    last: more.last,
    lines,
    marks: [...known.marks, ...more.marks],
    reason: more.reason,
    num_unplaced: more.num_unplaced,
  };
}

/** Join two lines, sorted by x. */
export function joinLines(line: Line, added: Line): Line {
  const last = line.x[line.x.length - 1];
  let x = [...line.x, ...added.x];
  let y = [...line.y, ...added.y];
  if (last !== undefined && added.x[0] !== undefined && added.x[0] < last) [x, y] = sorted(x, y);
  const result = { ...line, x, y, num_points: line.num_points + added.num_points };
  if (line.mean_x.length > 0 || added.mean_x.length > 0) {
    const [before, after] = [meansOf(line), meansOf(added)];
    result.mean_x = [...before.x, ...after.x];
    result.mean_y = [...before.y, ...after.y];
    result.mean_count = [...before.counts, ...after.counts];
  }
  return result;
}

/** The means of a line; the points themselves if it has all of them. */
function meansOf({ x, y, mean_x, mean_y, mean_count }: Line): { x: number[]; y: number[]; counts: number[] } {
  if (mean_x.length > 0) return { x: mean_x, y: mean_y, counts: mean_count };
  const kept = x.map((_, index) => index).filter((index) => y[index] !== null);
  return {
    x: kept.map((index) => x[index] as number),
    y: kept.map((index) => y[index] as number),
    counts: kept.map(() => 1),
  };
}

function sorted(x: number[], y: (number | null)[]): [number[], (number | null)[]] {
  const order = x.map((_, index) => index).sort((a, b) => (x[a] as number) - (x[b] as number) || a - b);
  return [order.map((index) => x[index] as number), order.map((index) => y[index] ?? null)];
}

export function numPoints(series: SeriesView): number {
  return series.lines.reduce((sum, line) => sum + line.x.length, 0);
}

/** The points in a range of x. */
export function pointsBetween(points: Points, low: number, high: number): Points {
  const kept = points.x
    .map((_, index) => index)
    .filter((index) => (points.x[index] as number) >= low && (points.x[index] as number) <= high);
  if (kept.length === points.x.length) return points;
  return { x: kept.map((index) => points.x[index] as number), y: kept.map((index) => points.y[index] ?? null) };
}

/** A series without the points after x: an answer has a neighbour on each side of the range that was asked for. */
export function pointsUpTo(series: SeriesView, high: number): SeriesView {
  if (high === Infinity) return series;
  const lines = series.lines.map((line) => {
    const [{ x, y }, means] = [
      pointsBetween(line, -Infinity, high),
      pointsBetween({ x: line.mean_x, y: line.mean_y }, -Infinity, high),
    ];
    return {
      ...line,
      x,
      y,
      mean_x: means.x,
      mean_y: means.y as number[],
      mean_count: line.mean_count.slice(0, means.x.length),
    };
  });
  return { ...series, lines: lines.filter(({ x }) => x.length > 0), marks: series.marks.filter(({ x }) => x <= high) };
}

export interface PlottedPoint {
  x: number;
  y: number;
}

/** The point of a line nearest to x; null past its ends and in gaps. If the line goes back, the latest of them. */
export function nearestPoint(points: Points, x: number): PlottedPoint | null {
  const last = points.x.length - 1;
  if (last < 0) return null;
  if (!isAscending(points.x)) return nearestOnPath(points, x);
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

function nearestOnPath({ x, y }: Points, position: number): PlottedPoint | null {
  let [nearest, least, low, high] = [null as PlottedPoint | null, Infinity, Infinity, -Infinity];
  for (let index = 0; index < x.length; index++) {
    const [at, value] = [x[index] as number, y[index] ?? null];
    [low, high] = [Math.min(low, at), Math.max(high, at)];
    if (value === null || Math.abs(at - position) > least) continue;
    [nearest, least] = [{ x: at, y: value }, Math.abs(at - position)];
  }
  return position < low || position > high ? null : nearest;
}
