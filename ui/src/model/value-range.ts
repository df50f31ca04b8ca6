/** The range of values that a chart shows: a few outliers must not flatten everything else. */

import type { Points } from "./series";

export interface ValueRange {
  low: number;
  high: number;
  /** The number of points outside, and of lines that have some. */
  numOutside: number;
  numLines: number;
}

/** At most this share of the points is left outside. */
const maxShare = 0.01;
/** Points this many times the height of the rest away from it flatten the rest. */
const maxHeights = 4;
/** A longer excursion is part of the curve. */
const maxLength = 3;
const minPoints = 20;

/**
 * Return the range of all points but outliers; null if there are none.
 *
 * An outlier is far away from almost all other points and is isolated: the line comes back at once. High values at the
 * beginning of a line, such as those of a loss, are part of it.
 */
export function rangeWithoutOutliers(lines: Points[]): ValueRange | null {
  const values = lines.flatMap(({ y }) => y.filter((value) => value !== null)).sort((a, b) => a - b);
  if (values.length < minPoints) return null;
  const numCut = Math.max(1, Math.floor(values.length * maxShare));
  const [lowest, highest] = [values[0] as number, values.at(-1) as number];
  let low = values[numCut] as number;
  let high = values[values.length - 1 - numCut] as number;
  const height = high - low;
  if (height <= 0) return null;
  // Values close to the rest are no outliers, whether or not they are among those that were cut.
  const [top, bottom] = [high + height, low - height];
  const isHigh = highest - high > maxHeights * height && areIsolated(lines, (value) => value > top);
  const isLow = low - lowest > maxHeights * height && areIsolated(lines, (value) => value < bottom);
  if (!isHigh && !isLow) return null;
  high = isHigh ? (values.findLast((value) => value <= top) as number) : highest;
  low = isLow ? (values.find((value) => value >= bottom) as number) : lowest;
  const outside = lines.map(({ y }) => y.filter((value) => value !== null && (value < low || value > high)).length);
  return {
    low,
    high,
    numOutside: outside.reduce((sum, count) => sum + count, 0),
    numLines: outside.filter((count) => count > 0).length,
  };
}

function areIsolated(lines: Points[], isOutside: (value: number) => boolean): boolean {
  return lines.every(({ y }) => {
    let length = 0;
    for (const [index, value] of y.entries()) {
      length = value !== null && isOutside(value) ? length + 1 : 0;
      if (length > maxLength || (length > 0 && index === 0)) return false;
    }
    return true;
  });
}
