/**
 * A line chart on a canvas, drawn by uPlot: zoom by dragging or pinching, and a cursor shared by all charts.
 *
 * The chart draws every point it receives; decimation happens on the server. For a request of n points the server splits
 * the range into buckets and returns the lowest and the highest point of each, so an outlier is never lost, and zooming
 * in loads finer points. Where points were left out, the server adds the mean of each bucket, which smoothing uses
 * instead of the extremes.
 *
 * uPlot wants all lines on one x axis: `align` merges their x values. Alerts are drawn behind the lines; NaN and
 * infinite values are drawn as marks at the edges, because a line cannot show them.
 */

import uPlot from "uplot";
import type { Mark } from "../api";
import type { AxisName } from "../model/axis-name";
import { type AlertMark, mergeBands } from "../model/alerts";
import { isolatedPoints, positionLabels, valueLabel } from "../model/axis-labels";
import { isEqual } from "../model/equal";
import { align, type Points } from "../model/series";
import { tickStepsSeconds } from "../model/time-range";
import type { ValueRange } from "../model/value-range";
import { colour } from "../theme.svelte";

export interface StyledLine {
  label: string;
  colour: string;
  points: Points;
  width: number;
  dash: number[];
}

export interface ChartContent {
  lines: StyledLine[];
  marks: Mark[];
  alerts: AlertMark[];
  x: AxisName;
  /** The visible range of the x axis; null fits the points. */
  low: number | null;
  high: number | null;
  isLog: boolean;
  /** The visible range of values; null fits all of them. */
  values: ValueRange | null;
  /** Values that were expected, drawn as a band; null on a side without a limit. */
  expected?: { low: number | null; high: number | null } | null;
}

export interface ChartEvents {
  zoom(low: number, high: number): void;
  reset(): void;
  /** The cursor's position on the x axis; null if it left the charts. */
  cursor(x: number | null): void;
}

const cursorSyncKey = "charts";
/** Lines with at most this many points also show the points themselves. */
const maxPointDots = 60;

export class Chart {
  #plot: uPlot | null = null;
  #style: unknown = null;
  #content: ChartContent | null = null;
  readonly #root: HTMLElement;
  readonly #on: ChartEvents;
  readonly #observer: ResizeObserver;

  constructor(root: HTMLElement, on: ChartEvents) {
    this.#root = root;
    this.#on = on;
    this.#observer = new ResizeObserver(() => this.#plot?.setSize(this.#size()));
    this.#observer.observe(root);
  }

  destroy(): void {
    this.#observer.disconnect();
    this.#plot?.destroy();
  }

  draw(content: ChartContent): void {
    this.#content = content;
    const data = alignLines(content);
    // uPlot takes styles only at construction. New points alone, the common case, do not need a new plot.
    const style = {
      x: content.x,
      isLog: content.isLog,
      text: colour("text"),
      lines: content.lines.map(({ label, colour, width, dash }) => ({ label, colour, width, dash })),
    };
    if (this.#plot && isEqual(style, this.#style)) {
      this.#plot.setData(data);
      return;
    }
    this.#style = style;
    this.#plot?.destroy();
    this.#plot = null;
    this.#plot = new uPlot(this.#options(content), data, this.#root);
    onPinch(this.#plot.over, (factor, at) => this.#zoomAround(factor, at));
  }

  /** Render the chart as a PNG image with a title. */
  async png(title: string): Promise<Blob | null> {
    const plot = this.#plot;
    if (!plot) return null;
    const { canvas } = plot.ctx;
    const scale = devicePixelRatio;
    const top = Math.round(30 * scale);
    const image = document.createElement("canvas");
    image.width = canvas.width;
    image.height = canvas.height + top;
    const context = image.getContext("2d");
    if (!context) return null;
    context.fillStyle = colour("panel");
    context.fillRect(0, 0, image.width, image.height);
    context.fillStyle = colour("text");
    context.font = `600 ${14 * scale}px system-ui, sans-serif`;
    context.fillText(title, 12 * scale, 20 * scale);
    context.drawImage(canvas, 0, top);
    return new Promise((resolve) => image.toBlob(resolve, "image/png"));
  }

  /** The distance of an x value from the left edge of the chart, in pixels. */
  leftOf(x: number): number {
    return this.#plot ? this.#plot.over.offsetLeft + this.#plot.valToPos(x, "x") : 0;
  }

  #size(): { width: number; height: number } {
    return { width: Math.max(80, this.#root.clientWidth), height: Math.max(80, this.#root.clientHeight) };
  }

  #options(content: ChartContent): uPlot.Options {
    const axis = {
      stroke: colour("muted"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    return {
      ...this.#size(),
      padding: [8, 28, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: content.x === "time", range: (_, low, high) => this.#range(low, high) },
        y: { distr: content.isLog ? 3 : 1, range: (_, low, high) => this.#valueRange(low, high) },
      },
      axes: [
        {
          ...axis,
          size: content.x === "time" ? 38 : 26,
          space: 70,
          ...(content.x === "relative" ? { incrs: tickStepsSeconds } : {}),
          values: (_, positions, __, ___, step) => positionLabels(positions, step, content.x),
        },
        {
          ...axis,
          size: (_, values) => 12 + 6.6 * Math.max(2, ...(values ?? []).map((text) => text?.length ?? 0)),
          values: (_, values, __, ___, step) =>
            values.map((value) => (value === null ? "" : valueLabel(value, content.isLog ? 0 : step))),
        },
      ],
      series: [
        {},
        ...content.lines.map((line) => ({
          label: line.label,
          stroke: line.colour,
          width: line.width,
          dash: line.dash,
          spanGaps: false,
          pxAlign: 0,
          points: {
            size: 4,
            show: (plot: uPlot, series: number) => countValues(plot, series) <= maxPointDots,
            // A point between two gaps is not part of a line: without a dot it would be invisible.
            filter: (plot: uPlot, series: number, show: boolean) =>
              show ? null : isolatedPoints(plot.data[series] ?? []),
          },
        })),
      ],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        sync: {
          key: cursorSyncKey,
          setSeries: false,
          filters: { pub: (type) => type === "mousemove" || type === "mouseleave" },
        },
        bind: {
          dblclick: () => () => {
            this.#on.reset();
            return null;
          },
        },
      },
      hooks: {
        setSelect: [(plot) => this.#zoomToSelection(plot)],
        setCursor: [
          (plot) =>
            this.#on.cursor((plot.cursor.left ?? -1) < 0 ? null : plot.posToVal(plot.cursor.left as number, "x")),
        ],
        drawAxes: [(plot) => this.#drawExpected(plot), (plot) => this.#drawAlerts(plot)], // behind the lines
        draw: [(plot) => this.#drawMarks(plot)],
      },
    };
  }

  #range(low: number | null, high: number | null): [number, number] {
    const from = this.#content?.low ?? low ?? 0;
    const to = this.#content?.high ?? high ?? 1;
    return from === to ? [from - 0.5, to + 0.5] : [from, to];
  }

  #valueRange(low: number | null, high: number | null): [number, number] {
    const { values = null, isLog = false, expected = null } = this.#content ?? {};
    if (values && !isLog) return valueRange(values.low, values.high, false);
    const ends = [low, high, expected?.low, expected?.high].filter((end) => typeof end === "number");
    return ends.length ? valueRange(Math.min(...ends), Math.max(...ends), isLog) : valueRange(low, high, isLog);
  }

  #zoomToSelection(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width > 3) this.#zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  #zoomAround(factor: number, at: number): void {
    if (!this.#plot) return;
    const { min = 0, max = 1 } = this.#plot.scales["x"] ?? {};
    const x = this.#plot.posToVal(at, "x");
    this.#zoom(x - (x - (min ?? 0)) / factor, x + ((max ?? 1) - x) / factor);
  }

  /** Zoom, but not closer than one step or the resolution of times. */
  #zoom(low: number, high: number): void {
    const minWidth = this.#content?.x === "step" ? 1 : 1e-5;
    const middle = (low + high) / 2;
    if (high - low < minWidth) this.#on.zoom(middle - minWidth / 2, middle + minWidth / 2);
    else this.#on.zoom(low, high);
  }

  /** A band of the expected values, with lines at its limits. */
  #drawExpected(plot: uPlot): void {
    const expected = this.#content?.expected;
    if (!expected) return;
    const { ctx, bbox } = plot;
    const bottom = bbox.top + bbox.height;
    const at = (value: number | null, edge: number): number =>
      value === null ? edge : Math.min(bottom, Math.max(bbox.top, plot.valToPos(value, "y", true)));
    const [top, low] = [at(expected.high, bbox.top), at(expected.low, bottom)];
    ctx.save();
    ctx.fillStyle = ctx.strokeStyle = colour("good");
    ctx.globalAlpha = 0.1;
    ctx.fillRect(bbox.left, top, bbox.width, low - top);
    ctx.globalAlpha = 0.6;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const y of [expected.high === null ? null : top, expected.low === null ? null : low]) {
      if (y === null) continue;
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** A line where an alert opened, and a tint until it was resolved. */
  #drawAlerts(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const alerts = this.#content?.alerts ?? [];
    const right = bbox.left + bbox.width;
    const size = 4 * devicePixelRatio;
    ctx.save();
    ctx.setLineDash([]);
    for (const tone of ["", "warn", "bad"] as const) {
      const own = alerts.filter((alert) => alert.tone === tone);
      ctx.fillStyle = colour(tone || "muted");
      ctx.globalAlpha = 0.07;
      for (const [low, high] of mergeBands(own)) {
        const from = Math.max(bbox.left, plot.valToPos(low, "x", true));
        const to = high === Infinity ? right : Math.min(right, plot.valToPos(high, "x", true));
        if (to > from) ctx.fillRect(from, bbox.top, to - from, bbox.height);
      }
      for (const x of new Set(own.map((alert) => Math.round(plot.valToPos(alert.x, "x", true))))) {
        if (x < bbox.left || x > right) continue;
        ctx.globalAlpha = 0.55;
        ctx.fillRect(x, bbox.top, Math.max(1, devicePixelRatio), bbox.height);
        ctx.globalAlpha = 1;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top - size);
        ctx.lineTo(x + 1.2 * size, bbox.top + size);
        ctx.lineTo(x - 1.2 * size, bbox.top + size);
        ctx.fill();
      }
    }
    ctx.restore();
  }

  /** Crosses at the bottom for NaN, arrows at the edges for infinities. */
  #drawMarks(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const size = 4 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("bad");
    ctx.lineWidth = 1.6 * devicePixelRatio;
    for (const mark of this.#content?.marks ?? []) {
      const x = plot.valToPos(mark.x, "x", true);
      if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
      const y = mark.kind === "Infinity" ? bbox.top + size : bbox.top + bbox.height - size;
      ctx.beginPath();
      if (mark.kind === "NaN") {
        ctx.moveTo(x - size, y - size);
        ctx.lineTo(x + size, y + size);
        ctx.moveTo(x + size, y - size);
        ctx.lineTo(x - size, y + size);
        ctx.stroke();
      } else {
        const tip = mark.kind === "Infinity" ? -size : size;
        ctx.moveTo(x, y + tip);
        ctx.lineTo(x - size, y - tip);
        ctx.lineTo(x + size, y - tip);
        ctx.fill();
      }
    }
    ctx.restore();
  }
}

function alignLines(content: ChartContent): uPlot.AlignedData {
  const lines = content.lines.map(({ points: { x, y } }) => ({
    x,
    y: content.isLog ? y.map((value) => (value !== null && value > 0 ? value : null)) : y,
  }));
  if (lines.length === 0) return [content.marks.map((mark) => mark.x).sort((a, b) => a - b)];
  return align(lines) as uPlot.AlignedData;
}

/** The range of the y axis: never so narrow that neighbouring labels would be equal. */
function valueRange(low: number | null, high: number | null, isLog: boolean): [number, number] {
  if (low === null || high === null) return isLog ? [1, 10] : [0, 1];
  if (isLog) return uPlot.rangeLog(low, high, 10, false) as [number, number];
  const minHeight = 1e-6 * Math.max(Math.abs(low), Math.abs(high));
  if (high - low >= minHeight && high - low > 0) return uPlot.rangeNum(low, high, 0.1, true) as [number, number];
  if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
  return [low - 5 * minHeight, high + 5 * minHeight];
}

function countValues(plot: uPlot, series: number): number {
  let count = 0;
  for (const value of plot.data[series] ?? [])
    if (value !== null && value !== undefined && ++count > maxPointDots) break;
  return count;
}

/** Call back when a two-finger gesture ends, with its zoom factor and its centre. */
function onPinch(element: HTMLElement, on: (factor: number, at: number) => void): void {
  const touches = new Map<number, number>();
  let start = 0;
  element.style.touchAction = "pan-y";
  element.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch") return;
    touches.set(event.pointerId, event.offsetX);
    if (touches.size === 2) start = distance(touches);
  });
  element.addEventListener("pointermove", (event) => {
    if (touches.has(event.pointerId)) touches.set(event.pointerId, event.offsetX);
  });
  const end = (event: PointerEvent): void => {
    if (touches.size === 2 && touches.has(event.pointerId) && start > 10) {
      const [a = 0, b = 0] = [...touches.values()];
      on(Math.min(20, Math.max(0.05, distance(touches) / start)), (a + b) / 2);
    }
    touches.delete(event.pointerId);
  };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
}

function distance(touches: Map<number, number>): number {
  const [a = 0, b = 0] = [...touches.values()];
  return Math.abs(a - b);
}
