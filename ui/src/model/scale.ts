/** What stands beside an axis, and what must not be overlooked on a chart. */

import type { XAxis } from "../api";
import { clock, number } from "./format";
import { timeLabel } from "./view";

/** A number on the scale, with as many digits as tell it from its neighbours. */
export function tick(value: number, step: number): string {
  const size = Math.abs(value);
  if (step <= 0 || size >= 1e6 || (size > 0 && size < 1e-3)) {
    const digits = step > 0 && size > 0 ? Math.min(15, Math.max(1, Math.ceil(Math.log10(size / step)) + 1)) : 3;
    return size >= 1e-3 && size < 1e6
      ? number(value, 4)
      : size === 0
        ? "0"
        : Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
  }
  return exact(value, step);
}

function exact(value: number, step: number): string {
  let digits = 0;
  while (digits < 12 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * step * 10 ** digits)
    digits++;
  const [whole = "", rest] = value.toFixed(digits).split(".");
  const grouped = whole.replace("-", "").length > 4 ? whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") : whole;
  return rest === undefined ? grouped : `${grouped}.${rest}`;
}

/** Places on the horizontal axis, each told from its neighbours. */
export function placeTexts(places: number[], step: number, x: XAxis): string[] {
  if (x === "relative") return places.map((place) => timeLabel(place, step));
  if (x === "time") return clockTexts(places, step);
  for (const [unit, size] of [
    ["M", 1e6],
    ["k", 1e3],
  ] as const) {
    if (step % (size / 10) === 0 && places.some((place) => Math.abs(place) >= 10 * size))
      return places.map((place) => (place === 0 ? "0" : `${exact(place / size, step / size)}${unit}`));
  }
  return places.map((place) => exact(place, step));
}

/** Times of day, with the date where a new one begins. */
function clockTexts(places: number[], step: number): string[] {
  let day = "";
  return places.map((place) => {
    const [date = "", time = ""] = clock(place).split(" ");
    const shown =
      step >= 86_400
        ? date
        : `${step >= 60 ? time.slice(0, 5) : step >= 1 ? time : `${time}.${String(Math.round((place % 1) * 1000)).padStart(3, "0")}`}${date === day ? "" : `\n${date}`}`;
    day = date;
    return shown;
  });
}

/** The points that have a gap on both sides. */
export function lonely(values: ArrayLike<number | null | undefined>): number[] {
  const found: number[] = [];
  let candidate = -1;
  let isAfterGap = true;
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (value === undefined) continue;
    if (value === null) {
      if (candidate >= 0) found.push(candidate);
      candidate = -1;
      isAfterGap = true;
    } else {
      candidate = isAfterGap ? index : -1;
      isAfterGap = false;
    }
  }
  if (candidate >= 0) found.push(candidate);
  return found;
}
