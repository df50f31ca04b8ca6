/** Formats values for display. */

import type { Json, Num } from "../api";

export const nothing = "–";

export function number(value: Num | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return nothing;
  if (typeof value === "string") return value === "NaN" ? "NaN" : value === "Infinity" ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return grouped(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 2).replace("e+", "e");
  return grouped(Number(value.toPrecision(digits)));
}

/** Separate groups of three digits from five digits on. */
function grouped(value: number): string {
  return Math.abs(value) < 10_000 ? String(value) : value.toLocaleString("en-US").replaceAll(",", "\u202f");
}

/** A count with its noun: `1 step`, `2 steps`. */
export function quantity(count: number, noun: string): string {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** How many of all things: `3 of 12 runs`, or `12 runs` if it is all of them. */
export function partOf(count: number, total: number, noun: string): string {
  return `${count === total ? "" : `${number(count)} of `}${quantity(total, noun)}`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return nothing;
  if (seconds < 0) return nothing;
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.9995) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 59.5) return `${seconds < 9.95 ? seconds.toFixed(1) : seconds.toFixed(0)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${pad(whole % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${pad(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const pad = (value: number): string => String(Math.floor(value)).padStart(2, "0");

export function ago(time: number | null | undefined, now: number): string {
  if (time === null || time === undefined) return nothing;
  const seconds = Math.max(0, now - time);
  if (seconds < 5) return "now";
  for (const [unit, size] of [
    ["d", 86_400],
    ["h", 3_600],
    ["min", 60],
  ] as const) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return `${Math.floor(seconds)} s ago`;
}

export function clock(time: number | null | undefined): string {
  if (time === null || time === undefined || !Number.isFinite(time)) return nothing;
  const at = new Date(time * 1000);
  if (Number.isNaN(at.getTime())) return nothing;
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function share(value: number | null | undefined): string {
  if (value === null || value === undefined) return nothing;
  return value > 0.99 && value < 1
    ? `${(Math.floor(value * 1000) / 10).toFixed(1)} %`
    : `${(value * 100).toFixed(0)} %`;
}

export function bytes(value: number): string {
  for (const unit of ["B", "kB", "MB"]) {
    if (value < 1000) return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} GB`;
}

/** An amount of energy, given in kWh. */
export function energy(kwh: number | null | undefined): string {
  if (kwh === null || kwh === undefined) return nothing;
  return kwh < 0.1 ? `${number(kwh * 1000, 3)} Wh` : `${number(kwh, 3)} kWh`;
}

/** A mass, given in grams. */
export function mass(grams: number): string {
  return grams < 1000 ? `${number(grams, 3)} g` : `${number(grams / 1000, 3)} kg`;
}

export function rate(stepsPerSecond: number | null): string {
  if (stepsPerSecond === null) return nothing;
  if (stepsPerSecond >= 1 || stepsPerSecond === 0) return `${number(stepsPerSecond, 3)} /s`;
  return `${duration(1 / stepsPerSecond)} each`;
}

/** A value of a config or a record, on one line. */
export function plain(value: Json | undefined): string {
  if (value === null || value === undefined) return nothing;
  if (typeof value === "number") return number(value, 6).replace(/\.?0+e/, "e");
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** A message of the API, which starts in lower case and does not end with a full stop, as a sentence. */
export function sentence(message: string): string {
  return message && `${message[0]?.toUpperCase()}${message.slice(1)}${/[.?!]$/.test(message) ? "" : "."}`;
}

export function words(name: string): string {
  return name.replaceAll("_", " ");
}
