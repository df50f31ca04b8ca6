/** An overlay of many runs in one chart: colours, ranges, the value of each run, and which line is near the cursor. */

import type { GroupLine, Json, Num, SeriesView, TableGroupsPage } from "../api";
import { type AxisName, isAscending } from "./axis-name";
import type { ChartLine } from "./chart-lines";
import { plain } from "./format";
import { type Scale, shareOf, valueAt } from "./scale";
import { nearestPoint, type Points } from "./series";
import type { ValueRange } from "./value-range";

/** One line of the legend: a run, or a group of runs. */
export interface Member {
  /** The name of the run, or the key of the group. */
  id: string;
  label: string;
  /** Of a group: its runs. */
  runs: string[];
  isGroup: boolean;
  colour: string;
}

/** Where the pointer or the keyboard is: in a chart, at a position, nearest to a line. */
export interface Cursor {
  metric: string | null;
  /** The axis of the position; charts on other axes do not show it. */
  axis: AxisName | null;
  x: number | null;
  /** A run or a member; alone, it highlights a line in all charts. */
  id: string | null;
}

export const noCursor: Cursor = { metric: null, axis: null, x: null, id: null };

/** The most runs in a request for means. */
export const maxGroupedRuns = 500;

/**
 * The runs of groups as few requests. A group is never divided, because its mean needs all of its runs; of a group with
 * more than `maxRuns`, the first ones are taken.
 */
export function packRuns(groups: { runs: string[] }[], maxRuns: number): string[][] {
  const packs: string[][] = [];
  for (const { runs } of groups) {
    const asked = runs.slice(0, maxRuns);
    const last = packs.at(-1);
    if (last && last.length + asked.length <= maxRuns) last.push(...asked);
    else packs.push(asked);
  }
  return packs;
}

const numPalette = 12;
const goldenAngle = 137.508;

/**
 * The colour of the member at an index.
 *
 * The first ones have the colours of the palette, which differ most; later ones turn the hue by the golden angle, which
 * keeps neighbours apart for any number. `isDark` is the theme.
 */
export function memberColour(index: number, palette: string[], isDark: boolean): string {
  if (index < numPalette) return palette[index] as string;
  const hue = (index * goldenAngle) % 360;
  const lightness = (isDark ? [0.68, 0.78, 0.6] : [0.42, 0.34, 0.5])[index % 3] as number;
  return hex(hue, isDark ? 0.62 : 0.68, lightness);
}

/** A colour in hue, saturation and lightness as `#rrggbb`, which every program that reads SVG knows. */
function hex(hue: number, saturation: number, lightness: number): string {
  const spread = saturation * Math.min(lightness, 1 - lightness);
  const channel = (offset: number): string => {
    const at = (offset + hue / 30) % 12;
    const value = lightness - spread * Math.max(-1, Math.min(at - 3, 9 - at, 1));
    return Math.round(255 * value)
      .toString(16)
      .padStart(2, "0");
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}

/** The lowest and the highest x of some lines; null if they have no points. */
export function extentOf(lines: { x: ArrayLike<number> }[], isLog: boolean): [number, number] | null {
  let [low, high] = [Infinity, -Infinity];
  for (const { x } of lines) {
    if (x.length === 0) continue;
    if (!isAscending(x)) {
      for (let index = 0; index < x.length; index++) {
        const at = x[index] as number;
        if (!isLog || at > 0) [low, high] = [Math.min(low, at), Math.max(high, at)];
      }
      continue;
    }
    let first = 0;
    if (isLog) while (first < x.length && (x[first] as number) <= 0) first++;
    if (first === x.length) continue;
    low = Math.min(low, x[first] as number);
    high = Math.max(high, x[x.length - 1] as number);
  }
  return low <= high ? [low, high] : null;
}

/** A chart whose points take a smaller share of the common range has a range of its own. */
const minShareOfRange = 0.25;

/**
 * The x range of one chart, given that of all charts and that of its own points.
 *
 * Charts share their range, so that equal places are equal positions. But the runs of another script may be a hundred
 * times as long, and would squeeze this chart into its left edge.
 */
export function rangeOfChart(
  common: [number | null, number | null],
  own: [number, number] | null,
): [number | null, number | null] {
  const [low, high] = common;
  if (low === null || high === null || own === null) return common;
  const length = own[1] - own[0];
  return length > 0 && length < minShareOfRange * (high - low) ? own : common;
}

/** Values this many times the usual height away from the usual range flatten the rest. */
const maxHeights = 4;
const minPoints = 20;
/** A line with a larger share of its values outside does not count for the range. */
const maxShare = 0.02;
/** Among at least this many lines, one that is far away from the others is an outlier. */
export const minLines = 5;
/** At most this share of the lines is: more of them are a part of what the runs are like. */
const maxLineShare = 0.1;

/**
 * The range of values that an overlay shows.
 *
 * With clipping, the usual range of a line lies between its 1 % and 99 % quantiles. The usual range of all lines spans
 * those of at least nine tenths of the lines. Whatever is more than four times its height away is left outside: single
 * values of a line, or a few lines, such as that of a run that diverged; `linesOutside` tells which lines cannot be seen
 * at all. A logarithmic scale needs no clipping.
 */
export function overlayRange(
  lines: Points[],
  low: number,
  high: number,
  isLog: boolean,
  isClipped: boolean,
): ValueRange | null {
  const values = lines.map((points) => valuesBetween(points, low, high, isLog)).filter((each) => each.length > 0);
  if (values.length === 0) return null;
  let [lowest, highest] = [Infinity, -Infinity];
  let count = 0;
  for (const each of values) {
    lowest = Math.min(lowest, each[0] as number);
    highest = Math.max(highest, each[each.length - 1] as number);
    count += each.length;
  }
  const whole = { low: lowest, high: highest, numOutside: 0, numLines: 0 };
  if (!isClipped || isLog || count < minPoints) return whole;
  const numCut = values.length < minLines ? 0 : Math.max(1, Math.floor(maxLineShare * values.length));
  const usual = (share: number): Float64Array => Float64Array.from(values, (each) => quantile(each, share)).sort();
  const [bottom, top] = [usual(0.01)[numCut] as number, usual(0.99)[values.length - 1 - numCut] as number];
  const height = top - bottom;
  if (!(height > 0)) return whole;
  const [floor, ceiling] = [bottom - maxHeights * height, top + maxHeights * height];
  if (lowest >= floor && highest <= ceiling) return whole;
  const range: ValueRange = { low: Infinity, high: -Infinity, numOutside: 0, numLines: 0 };
  for (const each of values) {
    const inside = each.filter((value) => value >= floor && value <= ceiling);
    const numOutside = each.length - inside.length;
    range.numOutside += numOutside;
    range.numLines += Number(numOutside > 0);
    // A line that is outside for long leaves the range on its way there: its other values do not count.
    if (numOutside > maxShare * each.length || inside.length === 0) continue;
    range.low = Math.min(range.low, inside[0] as number);
    range.high = Math.max(range.high, inside[inside.length - 1] as number);
  }
  if (range.low > range.high) return whole;
  return range;
}

/** The ids whose lines have values between two positions, but none that the scale shows. */
export function linesOutside(lines: Candidate[], low: number, high: number, scale: Scale): string[] {
  const isVisible = new Map<string, boolean>();
  for (const { id, points } of lines) {
    if (isVisible.get(id)) continue;
    for (let index = 0; index < points.x.length; index++) {
      const value = points.y[index] ?? null;
      const position = points.x[index] as number;
      if (value === null || position < low || position > high) continue;
      isVisible.set(id, value >= scale.low && value <= scale.high);
      if (isVisible.get(id)) break;
    }
  }
  return [...isVisible].flatMap(([id, visible]) => (visible ? [] : [id]));
}

/** The values in a range of x, sorted. */
function valuesBetween({ x, y }: Points, low: number, high: number, isLog: boolean): Float64Array {
  const found = new Float64Array(y.length);
  let count = 0;
  for (let index = 0; index < y.length; index++) {
    const value = y[index];
    const position = x[index] as number;
    if (value === null || value === undefined || position < low || position > high || (isLog && value <= 0)) continue;
    found[count++] = value;
  }
  return found.subarray(0, count).sort();
}

const quantile = (sorted: Float64Array, share: number): number =>
  sorted[Math.round(share * (sorted.length - 1))] as number;

/** The value of a run at x: that of its last attempt there, never smoothed. */
export function valueOf(lines: ChartLine[], run: string, x: number): number | null {
  for (let index = lines.length - 1; index >= 0; index--) {
    const line = lines[index] as ChartLine;
    if (line.run !== run || !line.isRaw) continue;
    const found = nearestPoint(line.points, x);
    if (found) return found.y;
  }
  return null;
}

/** What a chart has loaded. */
export interface ChartValues {
  byRun: Record<string, SeriesView>;
  /** The recorded lines of all runs, also of hidden ones. */
  lines: ChartLine[];
  /** The mean lines of groups with several runs, by the id of the member. */
  groupLines: Record<string, GroupLine>;
}

/** The value of a run or of the mean of a group, at x or the latest; never smoothed. */
export function memberValue(values: ChartValues, member: Member, x: number | null): Num | null {
  const line = member.isGroup ? values.groupLines[member.id] : undefined;
  if (line) return x === null ? (line.mean.at(-1) ?? null) : interpolate({ x: line.x, y: line.mean }, x);
  const [run] = member.runs;
  if (run === undefined || member.runs.length > 1) return null;
  return x === null ? (values.byRun[run]?.last ?? null) : valueOf(values.lines, run, x);
}

export interface Candidate {
  id: string;
  points: Points;
}

/** The line that is nearest to the height `share` of a scale, at the position x; null without lines there. */
export function nearestLine(lines: Candidate[], x: number, scale: Scale, share: number): string | null {
  let [best, least] = [null as string | null, Infinity];
  for (const { id, points } of lines) {
    for (const value of crossings(points, x)) {
      const distance = Math.abs(shareOf(scale, value) - share);
      if (distance < least) [best, least] = [id, distance];
    }
  }
  return best;
}

/** The cursor after an arrow key: along the axis, or from line to line; null if the key does not move it. */
export function moveCursor(
  cursor: Cursor,
  { metric, axis }: { metric: string; axis: AxisName },
  lines: Candidate[],
  scale: Scale,
  key: string,
  isFast: boolean,
): Cursor | null {
  const along = { ArrowLeft: -1, ArrowRight: 1 }[key];
  const across = { ArrowUp: 1, ArrowDown: -1 }[key];
  const byHeight = (at: number): string[] => {
    const found = lines.flatMap(({ id, points }) => {
      const value = interpolate(points, at);
      return value === null ? [] : [[id, value] as const];
    });
    return [...new Map(found.sort((a, b) => a[1] - b[1])).keys()];
  };
  if (along !== undefined) {
    const share = cursor.x === null ? 0.5 : shareOf(scale, cursor.x) || 0;
    const x = valueAt(scale, Math.min(1, Math.max(0, share + along * (isFast ? 0.1 : 0.01))));
    return { metric, axis, x, id: cursor.id ?? byHeight(x)[0] ?? null };
  }
  if (across === undefined) return null;
  const x = cursor.x ?? valueAt(scale, 0.5);
  const order = byHeight(x);
  const index = order.indexOf(cursor.id ?? "");
  const next = index < 0 ? 0 : Math.min(order.length - 1, Math.max(0, index + across));
  return { metric, axis, x, id: order[next] ?? null };
}

/** The heights of a line at x: one, unless the line goes back. */
function crossings(points: Points, position: number): number[] {
  const { x, y } = points;
  if (isAscending(x)) {
    const value = interpolate(points, position);
    return value === null ? [] : [value];
  }
  const heights: number[] = [];
  for (let index = 1; index < x.length; index++) {
    const [from, to] = [x[index - 1] as number, x[index] as number];
    const [before, after] = [y[index - 1] ?? null, y[index] ?? null];
    if (before === null || after === null || position < Math.min(from, to) || position > Math.max(from, to)) continue;
    heights.push(from === to ? after : before + ((after - before) * (position - from)) / (to - from));
  }
  return heights;
}

/** The height of a line at x, between its points; null past its ends and in gaps. The latest one if the line goes back. */
export function interpolate({ x, y }: Points, position: number): number | null {
  if (!isAscending(x)) return crossings({ x, y }, position).at(-1) ?? null;
  const last = x.length - 1;
  if (last < 0 || position < (x[0] as number) || position > (x[last] as number)) return null;
  let [low, high] = [0, last];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((x[middle] as number) < position) low = middle + 1;
    else high = middle;
  }
  const after = y[low] ?? null;
  if (low === 0 || x[low] === position) return after;
  const before = y[low - 1] ?? null;
  if (before === null || after === null) return null;
  const [from, to] = [x[low - 1] as number, x[low] as number];
  return before + ((after - before) * (position - from)) / (to - from);
}

/** The groups among some runs; a run that no group has is a group of its own. */
export function groupsOf(page: TableGroupsPage, runs: string[]): { label: string; runs: string[] }[] {
  const chosen = new Set(runs);
  const found = page.groups
    .map((group) => ({ key: group.key, runs: group.runs.filter((run) => chosen.has(run)) }))
    .filter((group) => group.runs.length > 0);
  // Only what tells these groups apart belongs into their labels.
  const differs = page.by.map((_, index) => new Set(found.map(({ key }) => JSON.stringify(key[index]))).size > 1);
  const labelOf = (key: Json[]): string => {
    const parts = page.by.flatMap((field, index) =>
      (differs[index] && (key[index] ?? null) !== null) || page.by.length === 1
        ? `${field.replace(/^config\./, "")}=${plain(key[index])}`
        : [],
    );
    return parts.join(", ") || "all";
  };
  const known = new Set(found.flatMap((group) => group.runs));
  const labels = new Set<string>();
  const labelled = found
    .sort((a, b) => compareKeys(a.key, b.key))
    .map(({ key, runs }) => {
      const label = labelOf(key);
      // Numbers that differ only in their last digits look alike.
      const unique = labels.has(label) ? `${label} (${labels.size + 1})` : label;
      labels.add(unique);
      return { label: unique, runs };
    });
  return [...labelled, ...runs.filter((run) => !known.has(run)).map((run) => ({ label: run, runs: [run] }))];
}

function compareKeys(a: Json[], b: Json[]): number {
  for (const [index, left] of a.entries()) {
    const right = b[index];
    const order =
      typeof left === "number" && typeof right === "number"
        ? left - right
        : collator.compare(plain(left), plain(right));
    if (order !== 0) return order;
  }
  return 0;
}

const collator = new Intl.Collator("en", { numeric: true });

export interface LegendRow {
  member: Member;
  value: Num | null;
  isShown: boolean;
}

/** The rows of a legend: those that contain every word of the search, by value; without a finite value last. */
export function legendRows(
  members: Member[],
  valueOf: (member: Member) => Num | null,
  isShown: (member: Member) => boolean,
  search: string,
  isDescending: boolean,
): LegendRow[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (text: string): boolean => words.every((word) => text.toLowerCase().includes(word));
  const sign = isDescending ? -1 : 1;
  return members
    .filter((member) => matches(member.label) || (member.isGroup && member.runs.some(matches)))
    .map((member) => ({ member, value: valueOf(member), isShown: isShown(member) }))
    .sort(({ value: a }, { value: b }) => {
      if (typeof a !== "number" || typeof b !== "number")
        return Number(typeof a !== "number") - Number(typeof b !== "number");
      return sign * (a - b);
    });
}

/** Whether a higher value is better, as far as the name of the metric tells; lower otherwise. */
export const isHigherBetter = (name: string): boolean =>
  /acc|f1|reward|score|throughput|per_sec|goodput|bleu|rouge|auc|mfu|utili[sz]ation/i.test(name);
