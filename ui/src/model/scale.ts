/** Linear and logarithmic scales of a chart, and their ticks. */

import { tickStepsSeconds } from "./time-range";

export interface Scale {
  low: number;
  high: number;
  isLog: boolean;
}

/** The place of a value on a scale: 0 at its low end, 1 at its high end. NaN if a logarithmic scale cannot show it. */
export function shareOf({ low, high, isLog }: Scale, value: number): number {
  if (!isLog) return (value - low) / (high - low);
  return value > 0 ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low)) : Number.NaN;
}

/** The value at a place of a scale; the inverse of `shareOf`. */
export function valueAt({ low, high, isLog }: Scale, share: number): number {
  return isLog ? low * Math.exp(share * (Math.log(high) - Math.log(low))) : low + share * (high - low);
}

/** A scale from the lowest to the highest value, never of zero length. `padding` is a share of the length. */
export function fitScale(low: number, high: number, isLog: boolean, padding = 0): Scale {
  if (!(low <= high)) return { low: isLog ? 1 : 0, high: isLog ? 10 : 1, isLog };
  if (isLog) {
    const factor = low === high ? 2 : (high / low) ** padding;
    return { low: low / factor || low, high: high * factor, isLog };
  }
  // Never so narrow that neighbouring labels would be equal. Smoothing leaves rounding errors in a constant.
  const least = 1e-6 * Math.max(Math.abs(low), Math.abs(high));
  if (low === high || high - low < least) {
    const isConstant = high - low <= 1e-3 * least;
    const margin = Math.max(5 * least, isConstant ? Math.abs(low) / 10 : 0) || 1;
    return { low: low - margin, high: high + margin, isLog };
  }
  const margin = padding * (high - low);
  return { low: low - margin, high: high + margin, isLog };
}

/** A scale of positions: exactly the range, unless it has no length. Times differ only in their last digits. */
export function positionScale(low: number, high: number, isLog: boolean): Scale {
  if (low < high) return { low, high, isLog };
  return low === high && !isLog ? { low: low - 0.5, high: high + 0.5, isLog } : fitScale(low, high, isLog);
}

export interface Ticks {
  values: number[];
  /** The distance between two ticks; 0 on a logarithmic scale. */
  step: number;
}

/** At most `maxTicks` ticks at round values. `isTime`: the values are seconds. */
export function ticksOf(scale: Scale, maxTicks: number, isTime = false): Ticks {
  if (scale.isLog) {
    const values = logTicks(scale, maxTicks);
    // Within less than a decade, round distances are easier to read.
    if (values.length >= 3 || (values.length === 2 && scale.high / scale.low >= 10)) return { values, step: 0 };
  }
  const { low, high } = scale;
  const least = (high - low) / Math.max(1, maxTicks);
  const step = (isTime ? tickStepsSeconds.find((each) => each >= least) : undefined) ?? roundStep(least);
  if (!Number.isFinite(step)) return { values: [], step };
  const first = Math.ceil(low / step - 1e-9) + 0;
  // Counted, because far from 0 adding 1 to an index may not change it.
  const count = Math.min(10 * maxTicks, Math.floor(high / step + 1e-9) - first + 1);
  const values = Array.from({ length: Math.max(0, count) || 0 }, (_, index) => (first + index) * step);
  return { values: scale.isLog ? values.filter((value) => value > 0) : values, step };
}

function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  const factor = [1, 2, 5, 10].find((each) => each * power >= least * (1 - 1e-9)) ?? 10;
  return Number((factor * power).toPrecision(12));
}

/** Powers of ten, with 2 and 5 or with 3 between them if there is room. */
function logTicks({ low, high }: Scale, maxTicks: number): number[] {
  const [lowest, highest] = [Math.log10(low), Math.log10(high)];
  const ticks = (digits: number[], first: number, stride: number): number[] => {
    const found: number[] = [];
    for (let power = first; power <= highest + 1e-9; power += stride)
      for (const digit of digits) found.push(Number(`${digit}e${power}`));
    return found.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
  };
  for (const digits of [
    [1, 2, 5],
    [1, 3],
  ]) {
    const found = ticks(digits, Math.floor(lowest), 1);
    if (found.length <= maxTicks) return found;
  }
  const first = Math.ceil(lowest - 1e-9);
  return ticks([1], first, Math.max(1, Math.ceil((Math.floor(highest + 1e-9) - first + 1) / maxTicks)));
}
