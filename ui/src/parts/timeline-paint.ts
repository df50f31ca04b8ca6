/**
 * Paints the timeline on a canvas: spans, phase shares, marks and the axis.
 *
 * A frame can contain tens of thousands of spans. Changing the fill colour is expensive, so `paintLanes` first collects
 * rectangles by colour, joins those that touch, and fills one colour after the other; details such as labels and
 * hatching are painted only on bars that are wide enough. Edges are snapped to device pixels, which is sharper and
 * faster than anti-aliasing. All texts are painted with `fillText`, so names from a journal cannot inject markup.
 */

import { duration } from "../model/format";
import { colourIndex } from "../model/palette";
import type { Tick, TimeRange } from "../model/time-range";
import { type Layout, nameOf, type Piece, statuses, visible } from "../model/timeline";
import type { MarkGroup, MarkKind } from "../model/timeline-marks";

export interface Theme {
  bg: string;
  panel: string;
  line: string;
  text: string;
  muted: string;
  accent: string;
  warn: string;
  bad: string;
  palette: string[];
  /** The text colour for each colour of the palette. */
  textColours: string[];
  /** Patterns by status, for spans that did not end normally. */
  hatches: Map<string, CanvasPattern>;
}

export interface Frame {
  context: CanvasRenderingContext2D;
  theme: Theme;
  view: TimeRange;
  width: number;
  height: number;
  /** Device pixels per CSS pixel. */
  ratio: number;
  now: number;
}

/** A horizontal strip of the canvas. */
export interface Band {
  top: number;
  height: number;
}

export interface Share {
  name: string;
  /** The end of each window. */
  x: number[];
  /** Null for windows without data. */
  y: (number | null)[];
}

/** Phase shares on common windows: window `i` is from `edges[i]` to `edges[i + 1]`. */
export interface Stack {
  names: string[];
  edges: Float64Array;
  /** By series; NaN in all of them for windows without data. */
  values: Float64Array[];
}

export interface Column {
  start: number;
  end: number;
  shares: number[];
}

export const laneHeightPx = 22;
const barHeight = 20;
/** Marks closer than this have no lines through the lanes. */
const minLineGapPx = 48;
const font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const statusSigns = new Map([
  ["error", "✕ "],
  ["died", "† "],
  ["left_open", "◌ "],
]);

export const xOf = (frame: Frame, time: number): number =>
  ((time - frame.view.low) / (frame.view.high - frame.view.low)) * frame.width;

/** Round to device pixels. */
const snap = (frame: Frame, x: number): number =>
  Math.round(Math.max(-8, Math.min(frame.width + 8, x)) * frame.ratio) / frame.ratio;

export function clear(frame: Frame): void {
  const { context, theme, width, height, ratio } = frame;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = font;
  context.textBaseline = "middle";
  context.fillStyle = theme.panel;
  context.fillRect(0, 0, width, height);
}

export function clipped(frame: Frame, band: Band, draw: () => void): void {
  frame.context.save();
  frame.context.beginPath();
  frame.context.rect(0, band.top, frame.width, band.height);
  frame.context.clip();
  draw();
  frame.context.restore();
}

// Lanes --------------------------------------------------------------------------------------------------------------

interface Bar {
  piece: Piece;
  x: number;
  y: number;
  width: number;
}

export function paintLanes(frame: Frame, layout: Layout, band: Band, scroll: number, selected: number | null): void {
  const { palette } = frame.theme;
  // By colour: those of heaps first, then those of the spans on top of them.
  const rectangles = [...palette, ...palette].map((): number[] => []);
  const bars: Bar[] = [];
  const first = Math.floor(scroll / laneHeightPx);
  const last = Math.floor((scroll + band.height) / laneHeightPx);
  const { low, high } = frame.view;
  for (const piece of visible(layout, low, high, frame.width, frame.now, { first, last })) {
    const x = snap(frame, xOf(frame, piece.start));
    const full = snap(frame, xOf(frame, piece.end)) - x;
    const width = full > 4 ? full - 1 : Math.max(1, full);
    const y = Math.round(band.top + piece.lane * laneHeightPx - scroll) + 1;
    const isSpan = piece.item < layout.spans.start.length;
    addRectangle(rectangles[layout.colour[piece.item]! + (isSpan ? palette.length : 0)]!, x, y, width);
    if (width >= 24 || piece.status > 1 || piece.item === selected) bars.push({ piece, x, y, width });
  }
  rectangles.forEach((flat, i) => {
    frame.context.fillStyle = palette[i % palette.length]!;
    for (let k = 0; k < flat.length; k += 3) frame.context.fillRect(flat[k]!, flat[k + 1]!, flat[k + 2]!, barHeight);
  });
  for (const bar of bars) paintStatus(frame, bar);
  for (const bar of bars) if (bar.width >= 24) paintLabel(frame, layout, bar);
  for (const bar of bars) if (bar.piece.item === selected) outline(frame, bar);
}

/** Add a rectangle, or extend the previous one if they touch. */
function addRectangle(flat: number[], x: number, y: number, width: number): void {
  const at = flat.length - 3;
  if (at >= 0 && flat[at + 1] === y && x <= flat[at]! + flat[at + 2]!) {
    flat[at + 2] = Math.max(flat[at + 2]!, x + width - flat[at]!);
  } else {
    flat.push(x, y, width);
  }
}

function paintStatus(frame: Frame, bar: Bar): void {
  const { context, theme } = frame;
  const { x, y, width } = bar;
  const status = statuses[bar.piece.status]!;
  if (status === "open") return paintOpenEdge(frame, bar);
  const hatch = theme.hatches.get(status);
  if (hatch === undefined) return;
  const colour = status === "left_open" ? theme.warn : theme.bad;
  if (width >= 6) {
    context.fillStyle = hatch;
    context.fillRect(x, y, width, barHeight);
    context.fillStyle = colour;
    if (status === "error") context.fillRect(x, y, 2, barHeight);
    context.fillRect(x + width - 3, y, 3, barHeight);
  }
  context.fillStyle = colour;
  context.fillRect(x, y - 1, Math.max(2, width), 4);
}

/** An open span fades out towards now. */
function paintOpenEdge(frame: Frame, { piece, x, y, width }: Bar): void {
  if (piece.end > frame.view.high) return;
  const strip = Math.min(40, width) / 8;
  frame.context.fillStyle = frame.theme.panel;
  for (let i = 0; i < 8; i++) {
    frame.context.globalAlpha = (i + 1) / 10;
    frame.context.fillRect(x + width - (8 - i) * strip, y, strip, barHeight);
  }
  frame.context.globalAlpha = 1;
}

function paintLabel(frame: Frame, layout: Layout, { piece, x, y, width }: Bar): void {
  const { context, theme } = frame;
  const left = Math.max(x, 0) + 5;
  const room = Math.min(x + width, frame.width) - left - 4;
  if (room < 14) return;
  const sign = statusSigns.get(statuses[piece.status]!) ?? "";
  const name = `${sign}${piece.count > 1 ? `${piece.count} × ` : ""}${nameOf(layout, piece.item)}`;
  const long = `${name}  ${duration(piece.count > 1 ? piece.total_s : piece.end - piece.start)}`;
  const text = room > 60 && widthOf(context, long) <= room ? long : truncate(context, name, room);
  if (sign !== "" && text !== "") {
    context.fillStyle = theme.palette[layout.colour[piece.item]!]!;
    context.fillRect(left - 2, y + 3, widthOf(context, text) + 4, barHeight - 3);
  }
  context.fillStyle = theme.textColours[layout.colour[piece.item]!]!;
  context.fillText(text, left, y + barHeight / 2 + 0.5);
}

function outline(frame: Frame, { x, y, width }: Bar): void {
  frame.context.strokeStyle = frame.theme.text;
  frame.context.lineWidth = 2;
  frame.context.strokeRect(x, y, Math.max(2, width), barHeight);
}

const widths = new Map<string, number>();

function widthOf(context: CanvasRenderingContext2D, text: string): number {
  let width = widths.get(text);
  if (width === undefined) {
    if (widths.size > 5_000) widths.clear();
    width = context.measureText(text).width;
    widths.set(text, width);
  }
  return width;
}

function truncate(context: CanvasRenderingContext2D, text: string, room: number): string {
  const width = widthOf(context, text);
  if (width <= room) return text;
  const letters = Array.from(text);
  const fitting = Math.floor((letters.length * (room - 8)) / width);
  return fitting > 0 ? `${letters.slice(0, fitting).join("")}…` : "";
}

// Shares of phases ---------------------------------------------------------------------------------------------------

/** Put shares on common windows. A phase without a value in a window that has others took no time there. */
export function stackOf(series: Share[]): Stack {
  const ends = Float64Array.from(new Set(series.flatMap((share) => share.x))).sort();
  const edges = new Float64Array(ends.length + 1);
  edges.set(ends, 1);
  if (ends.length > 0) edges[0] = ends.length > 1 ? 2 * ends[0]! - ends[1]! : ends[0]! - 1;
  const indexes = new Map(Array.from(ends, (end, i) => [end, i]));
  const isKnown = new Uint8Array(ends.length);
  const values = series.map((share) => {
    const found = new Float64Array(ends.length);
    share.x.forEach((end, i) => {
      const value = share.y[i] ?? NaN;
      if (!Number.isFinite(value)) return;
      isKnown[indexes.get(end)!] = 1;
      found[indexes.get(end)!] = Math.max(0, value);
    });
    return found;
  });
  for (const found of values) isKnown.forEach((is, i) => (found[i] = is ? found[i]! : NaN));
  return { names: series.map((share) => share.name), edges, values };
}

/** The columns to draw: windows, merged where they are narrower than two pixels, with time-weighted means. */
export function columns(stack: Stack, view: TimeRange, width: number): Column[] {
  const step = 2 ** Math.ceil(Math.log2((2 * (view.high - view.low)) / width));
  const found: Column[] = [];
  let slot = NaN;
  for (let i = 0; i + 1 < stack.edges.length; i++) {
    const [start, end] = [stack.edges[i]!, stack.edges[i + 1]!];
    if (end < view.low || Number.isNaN(stack.values[0]![i]!)) continue;
    if (start > view.high) break;
    const windowSlot = Math.floor(start / step);
    let last = found.at(-1);
    if (last === undefined || windowSlot !== slot || last.end !== start) {
      found.push((last = { start, end: start, shares: stack.names.map(() => 0) }));
      slot = windowSlot;
    }
    stack.values.forEach((values, series) => (last.shares[series]! += values[i]! * (end - start)));
    last.end = end;
  }
  for (const column of found) normalise(column);
  return found;
}

function normalise(column: Column): void {
  const sum = column.shares.reduce((total, share) => total + share, 0);
  const whole = Math.max(column.end - column.start, sum);
  column.shares = column.shares.map((share) => (whole > 0 ? share / whole : 0));
}

export function paintShares(frame: Frame, stack: Stack, band: Band): void {
  const found = columns(stack, frame.view, frame.width);
  const bottoms = found.map(() => band.height);
  const edges = found.map((column) => [snap(frame, xOf(frame, column.start)), snap(frame, xOf(frame, column.end))]);
  stack.names.forEach((name, series) => {
    frame.context.fillStyle = shareColour(frame.theme, name);
    found.forEach((column, i) => {
      const [x, end] = edges[i] as [number, number];
      const height = column.shares[series]! * band.height;
      bottoms[i]! -= height;
      const [top, bottom] = [Math.round(bottoms[i]!), Math.round(bottoms[i]! + height)];
      if (bottom > top) frame.context.fillRect(x, band.top + top, Math.max(1, end - x), bottom - top);
    });
  });
}

function shareColour(theme: Theme, name: string): string {
  if (name === "failed") return theme.bad;
  return name === "other" ? theme.line : theme.palette[colourIndex(name)]!;
}

// Marks and the axis -------------------------------------------------------------------------------------------------

export function paintMarks(frame: Frame, groups: MarkGroup[], band: Band): void {
  const { context } = frame;
  const y = band.top + band.height / 2;
  const hasLines = groups.length * minLineGapPx <= frame.width;
  for (const group of groups) {
    const x = xOf(frame, group.time);
    context.fillStyle = context.strokeStyle = markColour(frame.theme, group.kind);
    context.lineWidth = 1.5;
    if (hasLines && ["error", "alert", "control_change"].includes(group.kind)) {
      context.globalAlpha = 0.4;
      context.fillRect(Math.round(x), band.top + band.height, 1, frame.height);
      context.globalAlpha = 1;
    }
    glyph(context, group.kind, x, y, 5);
    if (group.marks.length > 1) context.fillText(String(group.marks.length), x + 8, y + 0.5);
  }
}

function markColour(theme: Theme, kind: MarkKind): string {
  if (kind === "error") return theme.bad;
  if (kind === "alert") return theme.warn;
  if (kind === "control_change") return theme.accent;
  return kind === "event" ? theme.muted : theme.palette[colourIndex(kind)]!;
}

/** Each kind has its own shape: a cross, a triangle, a hollow diamond, a square, a disc or a stroke. */
export function glyph(context: CanvasRenderingContext2D, kind: MarkKind, x: number, y: number, size: number): void {
  const shapes: Record<MarkKind, [number, number][]> = {
    error: [],
    alert: [
      [0, -1],
      [1.1, 0.9],
      [-1.1, 0.9],
    ],
    control_change: [
      [0, -1.1],
      [1.1, 0],
      [0, 1.1],
      [-1.1, 0],
    ],
    checkpoint: [
      [-0.85, -0.85],
      [0.85, -0.85],
      [0.85, 0.85],
      [-0.85, 0.85],
    ],
    validation: [],
    event: [
      [-0.2, -1],
      [0.2, -1],
      [0.2, 1],
      [-0.2, 1],
    ],
  };
  context.beginPath();
  if (kind === "validation") context.arc(x, y, size * 0.9, 0, 2 * Math.PI);
  for (const [dx, dy] of shapes[kind]) context.lineTo(x + dx * size, y + dy * size);
  if (kind === "error") {
    for (const side of [-1, 1]) {
      context.moveTo(x - size * 0.9, y - side * size * 0.9);
      context.lineTo(x + size * 0.9, y + side * size * 0.9);
    }
  }
  context.closePath();
  if (kind === "error" || kind === "control_change") context.stroke();
  else context.fill();
}

export function paintGrid(frame: Frame, ticks: Tick[]): void {
  frame.context.fillStyle = frame.theme.line;
  for (const tick of ticks) frame.context.fillRect(Math.round(xOf(frame, tick.time)), 0, 1, frame.height);
}

export function paintAxis(frame: Frame, ticks: Tick[], band: Band): void {
  const { context, theme } = frame;
  context.fillStyle = theme.panel;
  context.fillRect(0, band.top, frame.width, band.height);
  context.fillStyle = theme.line;
  context.fillRect(0, band.top, frame.width, 1);
  for (const tick of ticks) context.fillRect(Math.round(xOf(frame, tick.time)), band.top, 1, 5);
  context.fillStyle = theme.muted;
  for (const tick of ticks) {
    const half = widthOf(context, tick.label) / 2;
    const x = Math.max(half + 2, Math.min(frame.width - half - 2, xOf(frame, tick.time)));
    context.fillText(tick.label, x - half, band.top + band.height / 2 + 2);
  }
}

export function paintNow(frame: Frame, band: Band): void {
  const x = Math.round(xOf(frame, frame.now));
  frame.context.fillStyle = frame.theme.accent;
  if (x >= 0 && x <= frame.width) frame.context.fillRect(x, band.top, 1, band.height);
}

/** The range that the user is selecting. */
export function paintRange(frame: Frame, from: number, to: number, band: Band): void {
  const { context, theme } = frame;
  const [x, width] = [Math.min(from, to), Math.abs(to - from)];
  context.fillStyle = context.strokeStyle = theme.accent;
  context.globalAlpha = 0.18;
  context.fillRect(x, band.top, width, band.height);
  context.globalAlpha = 1;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, band.top + 0.5, width, band.height - 1);
}

/** The scroll position, if the lanes do not fit. */
export function paintScrollbar(frame: Frame, band: Band, scroll: number, contentHeight: number): void {
  const length = Math.max(16, (band.height / contentHeight) * band.height);
  const at = (scroll / (contentHeight - band.height)) * (band.height - length);
  frame.context.fillStyle = frame.theme.muted;
  frame.context.globalAlpha = 0.6;
  frame.context.fillRect(frame.width - 5, band.top + at, 4, length);
  frame.context.globalAlpha = 1;
}
