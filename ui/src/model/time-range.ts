/** The visible time range of the timeline, and its axis. Times are in seconds. */

export interface TimeRange {
  low: number;
  high: number;
}

export const minRangeSeconds = 1e-5;

/** Zoom by a factor; the time `at` keeps its position. */
export function zoom(view: TimeRange, factor: number, at: number): TimeRange {
  const lengthSeconds = view.high - view.low;
  const nextSeconds = Math.max(minRangeSeconds, lengthSeconds / factor);
  const low = at - ((at - view.low) / lengthSeconds) * nextSeconds;
  return { low, high: low + nextSeconds };
}

export function pan(view: TimeRange, seconds: number): TimeRange {
  return { low: view.low + seconds, high: view.high + seconds };
}

/** Keep a range within the extent: move it first, shorten it if it is too long. */
export function clamp(view: TimeRange, extent: TimeRange): TimeRange {
  const maxLengthSeconds = Math.max(extent.high - extent.low, minRangeSeconds);
  const lengthSeconds = Math.min(Math.max(view.high - view.low, minRangeSeconds), maxLengthSeconds);
  const low = Math.max(extent.low, Math.min(view.low, extent.high - lengthSeconds));
  return { low, high: low + lengthSeconds };
}

/** Follow a growing run: a range at the end stays at the end, a range of everything still shows everything. */
export function follow(view: TimeRange, before: TimeRange, after: TimeRange): TimeRange {
  const slackSeconds = (view.high - view.low) * 0.01;
  if (view.high < before.high - slackSeconds) return view;
  if (view.low <= before.low + slackSeconds) return { ...after };
  return pan(view, after.high - view.high);
}

export interface Tick {
  time: number;
  label: string;
}

const digits = [1, 2, 5];
export const tickStepsSeconds = [
  ...[-6, -5, -4, -3, -2, -1].flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`))),
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3_600),
  ...[1, 10, 100, 1_000].flatMap((power) => digits.map((digit) => digit * power * 86_400)),
];
const charWidthPx = 6.5;

/** Ticks at round distances from the origin, as close as their labels allow. */
export function ticks(view: TimeRange, width: number, origin = 0): Tick[] {
  const lengthSeconds = view.high - view.low;
  if (!(lengthSeconds > 0 && width > 0)) return [];
  for (const step of tickStepsSeconds) {
    if (lengthSeconds / step > width / 40) continue;
    const found = ticksAt(view, step, origin);
    const maxChars = found.reduce((chars, tick) => Math.max(chars, tick.label.length), 0);
    if ((step / lengthSeconds) * width >= maxChars * charWidthPx + 28) return found;
  }
  return [];
}

function ticksAt(view: TimeRange, step: number, origin: number): Tick[] {
  const found: Tick[] = [];
  const last = Math.floor((view.high - origin) / step);
  for (let i = Math.ceil((view.low - origin) / step); i <= last; i++) {
    found.push({ time: origin + i * step, label: timeLabel(i * step, step) });
  }
  return found;
}

/** A duration with the precision of a step: `12.5 ms`, `1 min 30 s`, `2 h 05 min`, `3 d 00 h`. */
export function timeLabel(seconds: number, step: number): string {
  if (seconds < 0) return `−${timeLabel(-seconds, step)}`;
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const rounded = Number(seconds.toFixed(decimals));
  if (rounded === 0) return "0 s";
  if (rounded < 1e-3) return `${plain(rounded * 1e6, decimals - 6)} µs`;
  if (rounded < 1) return `${plain(rounded * 1e3, decimals - 3)} ms`;
  const parts = [
    { unit: "d", value: Math.floor(rounded / 86_400), aboveSeconds: Infinity },
    { unit: "h", value: Math.floor(rounded / 3_600) % 24, aboveSeconds: 86_400 },
    { unit: "min", value: Math.floor(rounded / 60) % 60, aboveSeconds: 3_600 },
    { unit: "s", value: plain(rounded % 60, decimals), aboveSeconds: 60 },
  ];
  const first = parts.findIndex((part) => Number(part.value) > 0);
  const shown = parts.filter((part, i) => i === first || (i > first && step < part.aboveSeconds));
  return shown.map((part, i) => `${i === 0 ? part.value : twoDigits(part.value)} ${part.unit}`).join(" ");
}

const plain = (value: number, decimals: number): string => String(Number(value.toFixed(Math.max(0, decimals))));
const twoDigits = (value: number | string): string => String(value).replace(/^\d(?!\d)/, "0$&");
