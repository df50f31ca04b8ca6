/** A slider for a range of any size: one that spans several powers of ten moves by factors. */

export interface Scale {
  min: number;
  max: number;
  isWhole: boolean;
}

const numSteps = 1000;

const isWide = ({ min, max }: Scale): boolean => min > 0 && max / min >= 1000;

/** Where on the slider, from 0 to 1000, a value lies. */
export function toSlider(value: number, scale: Scale): number {
  const { min, max } = scale;
  if (max <= min) return 0;
  const part = isWide(scale) ? Math.log(Math.max(value, min) / min) / Math.log(max / min) : (value - min) / (max - min);
  return Math.round(numSteps * Math.min(1, Math.max(0, part)));
}

/** The value at a place of the slider, as round as the slider is fine. */
export function fromSlider(place: number, scale: Scale): number {
  const { min, max, isWhole } = scale;
  const part = place / numSteps;
  const value = isWide(scale) ? min * (max / min) ** part : min + (max - min) * part;
  if (part === 0 || part === 1) return part ? max : min;
  return isWhole ? Math.round(value) : Number(value.toPrecision(3));
}
