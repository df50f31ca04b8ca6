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
    return { low: low / factor, high: high * factor, isLog };
  }
  // Never so narrow that neighbouring labels would be equal.
  const least = 1e-6 * Math.max(Math.abs(low), Math.abs(high));
  if (low === high || high - low < least) {
    const margin = low === 0 && high === 0 ? 1 : Math.max(5 * least, low === high ? Math.abs(low) / 10 : 0);
    return { low: low - margin, high: high + margin, isLog };
  }
  const margin = padding * (high - low);
  return { low: low - margin, high: high + margin, isLog };
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
    if (values.length >= 3) return { values, step: 0 };
  }
  const { low, high } = scale;
  const least = (high - low) / Math.max(1, maxTicks);
  const step = (isTime ? tickStepsSeconds.find((each) => each >= least) : undefined) ?? roundStep(least);
  const values: number[] = [];
  for (let index = Math.ceil(low / step - 1e-9) + 0; index * step <= high + step * 1e-9; index++)
    values.push(index * step);
  return { values: scale.isLog ? values.filter((value) => value > 0) : values, step };
}

function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  const factor = [1, 2, 5, 10].find((each) => each * power >= least * (1 - 1e-9)) ?? 10;
  return Number((factor * power).toPrecision(12));
}

/** Powers of ten, with 2 and 5 between them if there is room. */
function logTicks({ low, high }: Scale, maxTicks: number): number[] {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const decades = last - first;
  const digits = decades * 3 <= maxTicks ? [1, 2, 5] : decades * 2 <= maxTicks ? [1, 3] : [1];
  const stride = Math.max(1, Math.ceil(decades / maxTicks));
  const found: number[] = [];
  for (let power = first; power <= last; power += stride)
    for (const digit of digits) found.push(Number(`${digit}e${power}`));
  return found.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
}
