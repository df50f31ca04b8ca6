/** Maps values to slider positions; logarithmically if the range spans several powers of ten. */

export interface SliderRange {
  min: number;
  max: number;
  isWhole: boolean;
}

const numSteps = 1000;

const isWide = ({ min, max }: SliderRange): boolean => min > 0 && max / min >= 1000;

/** The slider position of a value, 0 to 1000. */
export function toSlider(value: number, scale: SliderRange): number {
  const { min, max } = scale;
  if (max <= min) return 0;
  const part = isWide(scale) ? Math.log(Math.max(value, min) / min) / Math.log(max / min) : (value - min) / (max - min);
  return Math.round(numSteps * Math.min(1, Math.max(0, part)));
}

/** The value at a slider position, rounded to the precision of the slider. */
export function fromSlider(position: number, scale: SliderRange): number {
  const { min, max, isWhole } = scale;
  const part = position / numSteps;
  const value = isWide(scale) ? min * (max / min) ** part : min + (max - min) * part;
  if (part === 0 || part === 1) return part ? max : min;
  return isWhole ? Math.round(value) : Number(value.toPrecision(3));
}
