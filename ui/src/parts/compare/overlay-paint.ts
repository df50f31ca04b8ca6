/**
 * Paints the lines of one run or many in one pass, on a canvas or as SVG. Lengths are CSS pixels.
 *
 * Every point is drawn; decimation happens on the server. For a request of n points the server splits the range into
 * buckets and returns the lowest and the highest point of each, so an outlier is never lost, and zooming in loads finer
 * points. Where points were left out, the server adds the mean of each bucket, which smoothing uses instead of the
 * extremes. Alerts are drawn behind the lines; NaN and infinite values are marks at the edges, because a line cannot show
 * them.
 */

import type { Mark } from "../../api";
import { type AlertMark, mergeBands } from "../../model/alerts";
import type { AxisName } from "../../model/axis-name";
import { positionLabels, valueLabel } from "../../model/axis-labels";
import { type Scale, shareOf, ticksOf } from "../../model/scale";
import type { Points } from "../../model/series";
import type { Painter } from "./svg-context";

export interface PaintedLine {
  id: string;
  points: Points;
  colour: string;
  width: number;
  alpha: number;
  dash: number[];
  /** Whether it has the recorded values behind a smoothed line. */
  isBehind?: boolean;
}

export interface Band {
  colour: string;
  x: number[];
  low: number[];
  high: number[];
}

export interface Scene {
  axis: AxisName;
  x: Scale;
  y: Scale;
  bands: Band[];
  lines: PaintedLine[];
  marks: Mark[];
  /** Alerts and remarks. */
  alerts: AlertMark[];
  /** Values that were expected, drawn as a band; null on a side without a limit. */
  expected: { low: number | null; high: number | null } | null;
  theme: Theme;
}

/** The colours around the lines. */
export interface Theme {
  panel: string;
  text: string;
  muted: string;
  grid: string;
  good: string;
  warn: string;
  bad: string;
}

export interface Area {
  left: number;
  top: number;
  width: number;
  height: number;
}

const font = "11px system-ui, sans-serif";
const charWidth = 6.6;
const bottom = 24;
const timeAxes: readonly string[] = ["relative", "training_time"];
/** Lines with at most this many points also show the points themselves; thin lines are those of many runs. */
const [maxDots, maxThinDots] = [60, 30];

/** The labels of both axes, and the area that they leave for the lines. */
export function layOut({ axis, x, y }: Scene, width: number, height: number, offset = 0) {
  const top = 8;
  const rows = axis === "time" ? 14 : 0;
  const plotHeight = Math.max(20, height - top - bottom - rows);
  const valueTicks = ticksOf(y, Math.max(2, Math.floor(plotHeight / 34)));
  const values = valueTicks.values.map((value) => valueLabel(value, valueTicks.step));
  const left = 10 + charWidth * Math.max(2, ...values.map((text) => text.length));
  const plotWidth = Math.max(20, width - left - 18);
  const isTime = timeAxes.includes(axis);
  const positionTicks = ticksOf(x, Math.max(2, Math.floor(plotWidth / (isTime ? 90 : 70))), isTime || axis === "time");
  const positions =
    positionTicks.step === 0
      ? positionTicks.values.map((value) =>
          isTime ? positionLabels([value], value, "relative")[0] : valueLabel(value, 0),
        )
      : positionLabels(positionTicks.values, positionTicks.step, isTime ? "relative" : axis);
  return {
    area: { left, top: offset + top, width: plotWidth, height: plotHeight } satisfies Area,
    values: valueTicks.values.map((value, index) => ({ value, label: values[index] ?? "" })),
    positions: positionTicks.values.map((value, index) => ({ value, label: positions[index] ?? "" })),
  };
}

/** Paint everything but the title and the legend, `offset` below the top; returns the area of the lines. */
export function paintOverlay(context: Painter, scene: Scene, width: number, height: number, offset = 0): Area {
  const { area, values, positions } = layOut(scene, width, height, offset);
  const place = placer(scene, area);
  const { theme } = scene;
  context.save();
  context.font = font;
  context.lineWidth = 1;
  context.strokeStyle = theme.grid;
  context.fillStyle = theme.muted;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.beginPath();
  for (const { value, label } of values) {
    const y = crisp(place.y(value));
    context.moveTo(area.left, y);
    context.lineTo(area.left + area.width, y);
    context.fillText(label, area.left - 5, y);
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const { value, label } of positions) {
    const x = crisp(place.x(value));
    context.moveTo(x, area.top);
    context.lineTo(x, area.top + area.height);
    label.split("\n").forEach((text, row) => context.fillText(text, x, area.top + area.height + 6 + 13 * row));
  }
  context.stroke();
  paintExpected(context, scene, area, place);
  paintAlerts(context, scene, area, place);
  clipToArea(context, area);
  for (const band of scene.bands) paintBand(context, band, place);
  for (const line of scene.lines) paintLine(context, line, place);
  paintClipped(context, scene, area, place);
  paintMarks(context, scene, area, place);
  context.restore();
  return area;
}

const markPx = 4;

/** Paint only inside of an area. Marks at its first and its last position are whole. */
export function clipToArea(context: Painter, { left, top, width, height }: Area): void {
  context.beginPath();
  context.rect(left - markPx, top, width + 2 * markPx, height);
  context.clip();
}

export interface Placer {
  x(value: number): number;
  y(value: number): number;
}

export function placer({ x, y }: Scene, area: Area): Placer {
  return {
    x: (value) => area.left + area.width * shareOf(x, value),
    y: (value) => area.top + area.height * (1 - shareOf(y, value)),
  };
}

const crisp = (value: number): number => Math.round(value) + 0.5;

export function paintLine(context: Painter, line: PaintedLine, place: Placer): void {
  const { x, y } = line.points;
  context.strokeStyle = context.fillStyle = line.colour;
  context.lineWidth = line.width;
  context.globalAlpha = line.alpha;
  context.lineJoin = "round";
  context.setLineDash(line.dash);
  const isThin = line.width <= 1;
  const size = line.width + (isThin ? 1 : 2);
  const hasDots = x.length <= (isThin ? maxThinDots : maxDots);
  const dots: [number, number][] = [];
  let isOpen = false;
  let isIsolated = false;
  let [lastX, lastY] = [0, 0];
  context.beginPath();
  for (let index = 0; index < x.length; index++) {
    const value = y[index] ?? null;
    const at = value === null ? Number.NaN : place.y(value);
    const position = place.x(x[index] as number);
    if (Number.isNaN(at) || Number.isNaN(position)) {
      if (isOpen && isIsolated) dots.push([lastX, lastY]); // a point between two gaps is not part of a line
      isOpen = false;
      continue;
    }
    // Far outside, a canvas loses precision.
    const limited = Math.max(-1e5, Math.min(1e5, at));
    if (isOpen) context.lineTo(position, limited);
    else context.moveTo(position, limited);
    isIsolated = !isOpen;
    isOpen = true;
    [lastX, lastY] = [position, limited];
    if (hasDots) dots.push([position, limited]);
  }
  if (isOpen && isIsolated) dots.push([lastX, lastY]);
  context.stroke();
  for (const [left, top] of dots) context.fillRect(left - size / 2, top - size / 2, size, size);
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function paintBand(context: Painter, { x, low, high, colour }: Band, place: Placer): void {
  context.fillStyle = colour;
  context.globalAlpha = 0.16;
  let start = 0;
  while (start < x.length) {
    while (start < x.length && !isDrawn(low[start])) start++;
    let end = start;
    while (end < x.length && isDrawn(low[end]) && isDrawn(high[end])) end++;
    if (end - start > 1) {
      context.beginPath();
      for (let index = start; index < end; index++)
        context.lineTo(place.x(x[index] as number), place.y(high[index] as number));
      for (let index = end - 1; index >= start; index--)
        context.lineTo(place.x(x[index] as number), place.y(low[index] as number));
      context.closePath();
      context.fill();
    }
    start = Math.max(end, start + 1);
  }
  context.globalAlpha = 1;

  function isDrawn(value: number | null | undefined): boolean {
    return value !== null && value !== undefined && !Number.isNaN(place.y(value));
  }
}

/** A band of the expected values, with lines at its limits. */
function paintExpected(context: Painter, { expected, theme }: Scene, area: Area, place: Placer): void {
  if (!expected) return;
  const end = area.top + area.height;
  const at = (value: number | null, edge: number): number =>
    value === null ? edge : Math.min(end, Math.max(area.top, place.y(value)));
  const [top, low] = [at(expected.high, area.top), at(expected.low, end)];
  context.fillStyle = context.strokeStyle = theme.good;
  context.globalAlpha = 0.1;
  context.fillRect(area.left, top, area.width, low - top);
  context.globalAlpha = 0.6;
  context.lineWidth = 1;
  context.setLineDash([4, 4]);
  context.beginPath();
  for (const y of [expected.high === null ? null : top, expected.low === null ? null : low]) {
    if (y === null) continue;
    context.moveTo(area.left, y);
    context.lineTo(area.left + area.width, y);
  }
  context.stroke();
  context.setLineDash([]);
  context.globalAlpha = 1;
}

/** A line where an alert opened, and a tint until it was resolved. */
function paintAlerts(context: Painter, { x: scale, alerts, theme }: Scene, area: Area, place: Placer): void {
  const size = 4;
  const right = area.left + area.width;
  const limited = (value: number): number =>
    value <= scale.low ? area.left : value >= scale.high ? right : place.x(value);
  const colours = { "": theme.muted, warn: theme.warn, bad: theme.bad };
  for (const tone of ["", "warn", "bad"] as const) {
    const own = alerts.filter((alert) => alert.tone === tone);
    context.fillStyle = colours[tone];
    context.globalAlpha = 0.07;
    for (const [low, high] of mergeBands(own)) {
      const [from, to] = [limited(low), limited(high)];
      if (to > from) context.fillRect(from, area.top, to - from, area.height);
    }
    const visible = own.filter(({ x }) => x >= scale.low && x <= scale.high);
    for (const x of new Set(visible.map((alert) => Math.round(place.x(alert.x))))) {
      context.globalAlpha = 0.55;
      context.fillRect(x, area.top, 1, area.height);
      context.globalAlpha = 1;
      context.beginPath();
      context.moveTo(x, area.top - size);
      context.lineTo(x + 1.2 * size, area.top + size);
      context.lineTo(x - 1.2 * size, area.top + size);
      context.closePath();
      context.fill();
    }
  }
  context.globalAlpha = 1;
}

/** A triangle at the edge wherever a line leaves the visible range of values, in the colour of the line. */
function paintClipped(context: Painter, { x: scaleX, y: scaleY, lines }: Scene, area: Area, place: Placer): void {
  const size = 4;
  for (const { points, colour } of lines) {
    let lastMark = -Infinity;
    context.fillStyle = colour;
    for (let index = 0; index < points.x.length; index++) {
      const value = points.y[index] ?? null;
      if (value === null || (scaleY.isLog && value <= 0) || (value <= scaleY.high && value >= scaleY.low)) continue;
      const position = points.x[index] as number;
      if (position < scaleX.low || position > scaleX.high) continue;
      const at = place.x(position);
      if (Math.abs(at - lastMark) < 3 * size) continue;
      lastMark = at;
      const isAbove = value > scaleY.high;
      const tip = isAbove ? area.top : area.top + area.height;
      const base = isAbove ? tip + 1.6 * size : tip - 1.6 * size;
      context.beginPath();
      context.moveTo(at, tip);
      context.lineTo(at - size, base);
      context.lineTo(at + size, base);
      context.closePath();
      context.fill();
    }
  }
}

/** Crosses at the bottom for NaN, arrows at the edges for infinities. */
function paintMarks(context: Painter, { marks, theme }: Scene, area: Area, place: Placer): void {
  const size = 4;
  context.strokeStyle = context.fillStyle = theme.bad;
  context.lineWidth = 1.6;
  for (const mark of marks) {
    const x = place.x(mark.x);
    if (!(x >= area.left - 1 && x <= area.left + area.width + 1)) continue;
    const y = mark.kind === "Infinity" ? area.top + size : area.top + area.height - size;
    context.beginPath();
    if (mark.kind === "NaN") {
      context.moveTo(x - size, y - size);
      context.lineTo(x + size, y + size);
      context.moveTo(x + size, y - size);
      context.lineTo(x - size, y + size);
      context.stroke();
    } else {
      const tip = mark.kind === "Infinity" ? -size : size;
      context.moveTo(x, y + tip);
      context.lineTo(x - size, y - tip);
      context.lineTo(x + size, y - tip);
      context.fill();
    }
  }
}

export interface LegendText {
  label: string;
  colour: string;
}

const maxLegend = 60;
const legendRow = 16;
const titleHeight = 32;

/** A whole picture: title, chart and legend. */
export interface Picture {
  title: string;
  scene: Scene;
  legend: LegendText[];
  width: number;
  height: number;
}

/** The height of a picture, which depends on its legend. */
export function pictureHeight({ legend, width, height }: Picture): number {
  return (
    titleHeight + height + 10 + legendRow * Math.ceil(Math.min(legend.length, maxLegend + 1) / columnsOf(legend, width))
  );
}

function columnsOf(legend: LegendText[], width: number): number {
  const longest = legend.slice(0, maxLegend).reduce((most, { label }) => Math.max(most, label.length), 8);
  return Math.max(1, Math.floor((width - 16) / (longest * charWidth + 28)));
}

export function paintPicture(context: Painter, picture: Picture): void {
  const { title, scene, legend, width, height } = picture;
  const { theme } = scene;
  context.fillStyle = theme.panel;
  context.fillRect(0, 0, width, pictureHeight(picture));
  context.fillStyle = theme.text;
  context.font = "600 14px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "start";
  context.fillText(title, 12, 17);
  paintOverlay(context, scene, width, height, titleHeight);
  const columns = columnsOf(legend, width);
  const columnWidth = (width - 16) / columns;
  context.font = font;
  context.textBaseline = "middle";
  context.textAlign = "start";
  const rows: LegendText[] = legend.slice(0, maxLegend);
  if (legend.length > maxLegend) rows.push({ label: `and ${legend.length - maxLegend} more`, colour: theme.muted });
  rows.forEach(({ label, colour }, index) => {
    const left = 12 + columnWidth * (index % columns);
    const y = titleHeight + height + 10 + legendRow * Math.floor(index / columns);
    context.fillStyle = colour;
    context.fillRect(left, y - 1.5, 12, 3);
    context.fillStyle = theme.text;
    context.fillText(label, left + 18, y);
  });
}
