/**
 * A sweep: runs as lines over parallel axes, one for each config key that varies and one for the result.
 *
 * A position on an axis is a share from 0 at its bottom to 1 at its top, so that drawing, brushing and finding the line
 * under the pointer know nothing about values.
 */

import type { DiffPage, Json } from "../api";
import { valueLabel } from "./axis-labels";
import { number, plain } from "./format";
import { fitScale, shareOf, ticksOf } from "./scale";

export interface SweepAxis {
  name: string;
  kind: "linear" | "log" | "category";
  /** The position of each run; null where a run lacks the key. */
  positions: (number | null)[];
  values: Json[];
  ticks: { at: number; text: string }[];
}

export interface Brush {
  low: number;
  high: number;
}

/** The brushed part of each axis, by its name. */
export type Brushes = Readonly<Record<string, Brush>>;

const maxValueTicks = 6;
const maxCategoryTicks = 12;
const numTicks = 5;
const numLogTicks = 8;

/** The axes of the config keys that describe the training and have two or more values; seeds last. */
export function sweepAxes(page: Pick<DiffPage, "config">): SweepAxis[] {
  const axes = page.config
    .filter((key) => key.differs && !key.is_ignored)
    .map((key) => makeAxis(key.name, key.values))
    .filter((axis) => axis !== null);
  const isSeed = (axis: SweepAxis): boolean => /(^|[._-])seed/i.test(axis.name);
  return [...axes.filter((axis) => !isSeed(axis)), ...axes.filter(isSeed)];
}

/** Returns null if there are fewer than two different values. */
export function makeAxis(name: string, values: Json[]): SweepAxis | null {
  const known = values.filter((value) => value !== null && !isNonFinite(value));
  if (new Set(known.map(plain)).size < 2) return null;
  return known.every((value) => typeof value === "number")
    ? numberAxis(name, values, known as number[])
    : categoryAxis(name, values, known);
}

const plotTicks = 6;
const plotMargin = 0.05;

/** An axis of one plot, with round ticks and a margin, also if all runs have one value; null if no run can be placed. */
export function plotAxis(name: string, values: Json[], isLog: boolean): SweepAxis | null {
  const known = values.filter((value) => value !== null && !isNonFinite(value));
  if (!known.every((value) => typeof value === "number")) {
    const axis = categoryAxis(name, values, known);
    const inside = (at: number): number => 0.1 + 0.8 * at; // no point on the frame
    return {
      ...axis,
      positions: axis.positions.map((at) => (at === null ? null : inside(at))),
      ticks: axis.ticks.map(({ at, text }) => ({ at: inside(at), text })),
    };
  }
  const isPlaced = (value: Json): value is number => typeof value === "number" && (!isLog || value > 0);
  const placed = known.filter(isPlaced);
  if (placed.length === 0) return null;
  const scale = fitScale(Math.min(...placed), Math.max(...placed), isLog, plotMargin);
  const ticks = ticksOf(scale, plotTicks);
  return {
    name,
    kind: isLog ? "log" : "linear",
    positions: values.map((value) => (isPlaced(value) ? shareOf(scale, value) : null)),
    values,
    ticks: ticks.values.map((value) => ({ at: shareOf(scale, value), text: valueLabel(value, ticks.step) })),
  };
}

const isNonFinite = (value: Json): boolean => value === "NaN" || value === "Infinity" || value === "-Infinity";

const minLogRatio = 30;

/** Whether positive numbers of a wide range lie more evenly on a logarithmic axis than on a linear one. */
function isSpacedLog(values: number[]): boolean {
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  const [low = 0, high = 0] = [distinct[0], distinct.at(-1)];
  if (low <= 0 || high / low < minLogRatio) return false;
  /** The largest gap between neighbours, as a share of the axis. */
  const largestGap = (scale: (value: number) => number): number =>
    Math.max(...distinct.slice(1).map((value, index) => scale(value) - scale(distinct[index] ?? 0))) /
    (scale(high) - scale(low));
  return largestGap(Math.log) <= largestGap((value) => value);
}

function numberAxis(name: string, values: Json[], known: number[]): SweepAxis {
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const isLog = isSpacedLog(known);
  const scale = isLog ? Math.log : (value: number): number => value;
  const place = (value: number): number => (scale(value) - scale(low)) / (scale(high) - scale(low));
  const distinct = [...new Set(known)].sort((a, b) => a - b);
  const round = ticksOf({ low, high, isLog }, isLog ? numLogTicks : numTicks);
  const ticks =
    distinct.length <= maxValueTicks
      ? distinct.map((value) => ({ at: place(value), text: number(value) }))
      : round.values.map((value) => ({ at: place(value), text: valueLabel(value, round.step) }));
  return {
    name,
    kind: isLog ? "log" : "linear",
    positions: values.map((value) => (typeof value === "number" ? place(value) : null)),
    values,
    ticks: spaced(ticks),
  };
}

/** Leave out ticks whose texts would overlap. */
function spaced(ticks: SweepAxis["ticks"]): SweepAxis["ticks"] {
  const kept: SweepAxis["ticks"] = [];
  for (const [index, tick] of ticks.entries()) {
    const isLast = index === ticks.length - 1;
    if (isLast) while (kept.length > 1 && tick.at - (kept.at(-1)?.at ?? 0) < 0.07) kept.pop();
    if (isLast || kept.length === 0 || tick.at - (kept.at(-1)?.at ?? 0) >= 0.07) kept.push(tick);
  }
  return kept;
}

function categoryAxis(name: string, values: Json[], known: Json[]): SweepAxis {
  const texts = [...new Set(known.map(plain))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const places = new Map(texts.map((text, index) => [text, texts.length > 1 ? index / (texts.length - 1) : 0.5]));
  const every = Math.ceil(texts.length / maxCategoryTicks);
  return {
    name,
    kind: "category",
    positions: values.map((value) => (value === null ? null : (places.get(plain(value)) ?? null))),
    values,
    ticks: texts.filter((_, index) => index % every === 0).map((text) => ({ at: places.get(text) ?? 0, text })),
  };
}

const maxSpread = 0.025;

/** The positions for drawing: runs with the same value are spread a little, in the order of their shares. */
export function spread(axis: SweepAxis, shares: (number | null)[]): (number | null)[] {
  const members = new Map<number, number[]>();
  for (const [run, at] of axis.positions.entries()) {
    if (at !== null) members.set(at, [...(members.get(at) ?? []), run]);
  }
  const places = [...members.keys()].sort((a, b) => a - b);
  const gaps = places.slice(1).map((at, index) => at - (places[index] ?? 0));
  const reach = Math.min(maxSpread, ...gaps.map((gap) => gap / 4));
  const drawn = [...axis.positions];
  for (const [at, runs] of members) {
    const order = [...runs].sort((a, b) => (shares[a] ?? -1) - (shares[b] ?? -1));
    for (const [index, run] of order.entries()) {
      if (order.length > 1) drawn[run] = at + reach * ((2 * index) / (order.length - 1) - 1);
    }
  }
  return drawn;
}

const nudge = 0.05;

/** The brush after a key: its upper end moves, or its lower one; null without a brush, undefined if the key means nothing. */
export function nudgeBrush(brush: Brush | undefined, key: string, isLower: boolean): Brush | null | undefined {
  if (key === "Escape") return brush ? null : undefined;
  const by = { ArrowUp: nudge, ArrowDown: -nudge, Home: -1, End: 1 }[key];
  if (by === undefined) return undefined;
  const { low, high } = brush ?? { low: 0, high: 1 };
  const move = (from: number, least: number, most: number): number =>
    Number(Math.min(most, Math.max(least, from + by)).toFixed(4));
  const next = isLower ? { low: move(low, 0, high), high } : { low, high: move(high, low, 1) };
  return next.low === 0 && next.high === 1 ? null : next;
}

/** Whether each run lies within all brushes; a run without a value lies outside. */
export function brushed(axes: SweepAxis[], brushes: Brushes, numRuns: number): boolean[] {
  const active = axes.flatMap((axis) => {
    const brush = brushes[axis.name];
    return brush ? [{ axis, brush }] : [];
  });
  const margin = 1e-9;
  return Array.from({ length: numRuns }, (_, run) =>
    active.every(({ axis, brush }) => {
      const at = axis.positions[run] ?? null;
      return at !== null && at >= brush.low - margin && at <= brush.high + margin;
    }),
  );
}

/** The run whose line passes closest to a point; x counts axes from 0, and distances are in pixels. */
export function nearestLine(
  axes: Pick<SweepAxis, "positions">[],
  isShown: boolean[],
  x: number,
  y: number,
  heightPx: number,
  reachPx: number,
): number | null {
  const left = Math.min(Math.max(0, Math.floor(x)), Math.max(0, axes.length - 2));
  const [from, to] = [axes[left], axes[left + 1]];
  if (!from || !to) return null;
  const part = Math.min(1, Math.max(0, x - left));
  return nearest(isShown, reachPx, (run) => {
    const [low, high] = [from.positions[run] ?? null, to.positions[run] ?? null];
    return low === null || high === null ? null : Math.abs(low + (high - low) * part - y) * heightPx;
  });
}

/** The run whose point is closest to a point of a scatter plot; all positions are shares. */
export function nearestPoint(
  axes: { x: SweepAxis; y: SweepAxis },
  isShown: boolean[],
  at: { x: number; y: number },
  sizePx: { width: number; height: number },
  reachPx: number,
): number | null {
  return nearest(isShown, reachPx, (run) => {
    const [x, y] = [axes.x.positions[run] ?? null, axes.y.positions[run] ?? null];
    return x === null || y === null ? null : Math.hypot((x - at.x) * sizePx.width, (y - at.y) * sizePx.height);
  });
}

/** The run whose point is next along an axis, for an arrow key; without a run at first, that at the end of the axis. */
export function nextPoint(
  axes: { x: SweepAxis; y: SweepAxis },
  isShown: boolean[],
  run: number | null,
  key: string,
): number | null {
  const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[key];
  if (by === undefined) return null;
  const [along, across] = key === "ArrowLeft" || key === "ArrowRight" ? [axes.x, axes.y] : [axes.y, axes.x];
  const place = (axis: SweepAxis, run: number): number => axis.positions[run] ?? 0;
  const runs = isShown
    .flatMap((shown, run) => (shown && along.positions[run] != null && across.positions[run] != null ? [run] : []))
    .sort((a, b) => place(along, a) - place(along, b) || place(across, a) - place(across, b) || a - b);
  const index = run === null ? -1 : runs.indexOf(run);
  const next = index < 0 ? (by > 0 ? 0 : runs.length - 1) : Math.min(runs.length - 1, Math.max(0, index + by));
  return runs[next] ?? null;
}

function nearest(isShown: boolean[], reachPx: number, distance: (run: number) => number | null): number | null {
  let best: number | null = null;
  let closest = reachPx;
  for (const [run, shown] of isShown.entries()) {
    const found = shown ? distance(run) : null;
    if (found !== null && found <= closest) [best, closest] = [run, found];
  }
  return best;
}

/** The colour of each run as a share from the worst result, 0, to the best, 1; null without a result. */
export function colourShares(result: SweepAxis | null, direction: number, numRuns: number): (number | null)[] {
  return Array.from({ length: numRuns }, (_, run) => {
    const at = result?.positions[run] ?? null;
    return at === null ? null : direction < 0 ? 1 - at : at;
  });
}

/** A CSS colour between that of bad and that of good results; both can be told apart with any colour vision. */
export function shareColour(share: number | null): string {
  if (share === null) return "var(--muted)";
  return `color-mix(in oklab, var(--palette-0) ${Math.round(share * 100)}%, var(--palette-1))`;
}
