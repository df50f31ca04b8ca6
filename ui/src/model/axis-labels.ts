/** The labels of axes. */

import type { AxisName } from "./axis-name";
import { clock, number } from "./format";
import { timeLabel } from "./time-range";

/** A label of the y axis, with enough digits to differ from its neighbours. */
export function valueLabel(value: number, step: number): string {
  const size = Math.abs(value);
  if (size === 0 && step < 1e-4) return "0"; // its neighbours are written with exponents
  if (step <= 0 || size >= 1e6 || (size > 0 && size < 1e-3 && step < 1e-4)) {
    const digits = step > 0 ? Math.min(15, Math.max(1, Math.ceil(Math.log10(size / step)) + 1)) : 3;
    return size >= 1e-3 && size < 1e6
      ? number(value, 4)
      : Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
  }
  return fixedDecimals(value, step);
}

function fixedDecimals(value: number, step: number): string {
  let digits = 0;
  while (digits < 12 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * step * 10 ** digits)
    digits++;
  const [whole = "", rest] = value.toFixed(digits).split(".");
  const grouped = whole.replace("-", "").length > 4 ? whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") : whole;
  return rest === undefined ? grouped : `${grouped}.${rest}`;
}

/** Labels of the x axis, with enough digits to differ from each other. */
export function positionLabels(positions: number[], step: number, x: AxisName): string[] {
  if (x === "relative") return positions.map((position) => timeLabel(position, step));
  if (x === "time") return clockLabels(positions, step);
  for (const [unit, size] of [
    ["M", 1e6],
    ["k", 1e3],
  ] as const) {
    if (step % (size / 10) === 0 && positions.some((position) => Math.abs(position) >= 10 * size))
      return positions.map((position) =>
        position === 0 ? "0" : `${fixedDecimals(position / size, step / size)}${unit}`,
      );
  }
  return positions.map((position) => fixedDecimals(position, step));
}

/** Times of day, with the date where a new day begins. */
function clockLabels(positions: number[], step: number): string[] {
  let day = "";
  return positions.map((position) => {
    const [date = "", time = ""] = clock(position).split(" ");
    const shown =
      step >= 86_400
        ? date
        : `${step >= 60 ? time.slice(0, 5) : step >= 1 ? time : `${time}.${String(Math.round((position % 1) * 1000)).padStart(3, "0")}`}${date === day ? "" : `\n${date}`}`;
    day = date;
    return shown;
  });
}
