/** A chart of lines on uPlot: zoom by dragging, a cursor shared by all charts, marks where values were not finite. */

import uPlot from "uplot";
import type { Mark, XAxis } from "../api";
import { type AlertMark, bandsOf } from "../model/alerts";
import { lonely, placeTexts, tick } from "../model/scale";
import { align, type Points } from "../model/series";
import { steps_s } from "../model/view";
import { colour } from "../theme.svelte";

export interface DrawnLine {
  label: string;
  colour: string;
  points: Points;
  width: number;
  dash: number[];
}

export interface Picture {
  lines: DrawnLine[];
  marks: Mark[];
  alerts: AlertMark[];
  x: XAxis;
  /** What is shown of the axis. */
  low: number | null;
  high: number | null;
  isLog: boolean;
}

export interface ChartEvents {
  zoom(low: number, high: number): void;
  reset(): void;
  /** Where the cursor is on the axis, null if it is nowhere. */
  cursor(x: number | null): void;
}

const shared = "charts";

export class Chart {
  #plot: uPlot | null = null;
  #look = "";
  #picture: Picture | null = null;
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

  draw(picture: Picture): void {
    this.#picture = picture;
    const data = aligned(picture);
    const look = JSON.stringify([
      picture.x,
      picture.isLog,
      colour("text"),
      picture.lines.map(({ label, colour, width, dash }) => [label, colour, width, dash]),
    ]);
    if (look === this.#look && this.#plot) {
      this.#plot.setData(data);
      return;
    }
    this.#look = look;
    this.#plot?.destroy();
    this.#plot = null;
    this.#plot = new uPlot(this.#options(picture), data, this.#root);
    pinch(this.#plot.over, (factor, at) => this.#pinched(factor, at));
  }

  /** The chart as a picture, with its title. */
  async png(title: string): Promise<Blob | null> {
    const plot = this.#plot;
    if (!plot) return null;
    const { canvas } = plot.ctx;
    const scale = devicePixelRatio;
    const top = Math.round(30 * scale);
    const picture = document.createElement("canvas");
    picture.width = canvas.width;
    picture.height = canvas.height + top;
    const context = picture.getContext("2d");
    if (!context) return null;
    context.fillStyle = colour("panel");
    context.fillRect(0, 0, picture.width, picture.height);
    context.fillStyle = colour("text");
    context.font = `600 ${14 * scale}px system-ui, sans-serif`;
    context.fillText(title, 12 * scale, 20 * scale);
    context.drawImage(canvas, 0, top);
    return new Promise((resolve) => picture.toBlob(resolve, "image/png"));
  }

  /** How far from the left of the chart a place on the axis is, in pixels. */
  leftOf(x: number): number {
    return this.#plot ? this.#plot.over.offsetLeft + this.#plot.valToPos(x, "x") : 0;
  }

  #size(): { width: number; height: number } {
    return { width: Math.max(80, this.#root.clientWidth), height: Math.max(80, this.#root.clientHeight) };
  }

  #options(picture: Picture): uPlot.Options {
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
        x: { time: picture.x === "time", range: (_, low, high) => this.#range(low, high) },
        y: { distr: picture.isLog ? 3 : 1, range: (_, low, high) => valueRange(low, high, picture.isLog) },
      },
      axes: [
        {
          ...axis,
          size: picture.x === "time" ? 38 : 26,
          space: 70,
          ...(picture.x === "relative" ? { incrs: steps_s } : {}),
          values: (_, places, __, ___, step) => placeTexts(places, step, picture.x),
        },
        {
          ...axis,
          size: (_, values) => 12 + 6.6 * Math.max(2, ...(values ?? []).map((text) => text?.length ?? 0)),
          values: (_, values, __, ___, step) =>
            values.map((value) => (value === null ? "" : tick(value, picture.isLog ? 0 : step))),
        },
      ],
      series: [
        {},
        ...picture.lines.map((line) => ({
          label: line.label,
          stroke: line.colour,
          width: line.width,
          dash: line.dash,
          spanGaps: false,
          pxAlign: 0,
          points: {
            size: 4,
            show: (plot: uPlot, series: number) => numKnown(plot, series) <= mostDots,
            // A point between two gaps has no line to be seen by.
            filter: (plot: uPlot, series: number, show: boolean) => (show ? null : lonely(plot.data[series] ?? [])),
          },
        })),
      ],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        sync: {
          key: shared,
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
        setSelect: [(plot) => this.#selected(plot)],
        setCursor: [
          (plot) =>
            this.#on.cursor((plot.cursor.left ?? -1) < 0 ? null : plot.posToVal(plot.cursor.left as number, "x")),
        ],
        drawAxes: [(plot) => this.#drawAlerts(plot)], // behind the lines
        draw: [(plot) => this.#drawMarks(plot)],
      },
    };
  }

  #range(low: number | null, high: number | null): [number, number] {
    const from = this.#picture?.low ?? low ?? 0;
    const to = this.#picture?.high ?? high ?? 1;
    return from === to ? [from - 0.5, to + 0.5] : [from, to];
  }

  #selected(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width > 3) this.#zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  #pinched(factor: number, at: number): void {
    if (!this.#plot) return;
    const { min = 0, max = 1 } = this.#plot.scales["x"] ?? {};
    const place = this.#plot.posToVal(at, "x");
    this.#zoom(place - (place - (min ?? 0)) / factor, place + ((max ?? 1) - place) / factor);
  }

  /** Closer than a step, or than times are known, there is nothing to see. */
  #zoom(low: number, high: number): void {
    const least = this.#picture?.x === "step" ? 1 : 1e-5;
    const middle = (low + high) / 2;
    if (high - low < least) this.#on.zoom(middle - least / 2, middle + least / 2);
    else this.#on.zoom(low, high);
  }

  /** A line where an alert was opened, and a tint until it was resolved. */
  #drawAlerts(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const alerts = this.#picture?.alerts ?? [];
    const right = bbox.left + bbox.width;
    const size = 4 * devicePixelRatio;
    ctx.save();
    ctx.setLineDash([]);
    for (const look of ["", "warn", "bad"] as const) {
      const own = alerts.filter((alert) => alert.look === look);
      ctx.fillStyle = colour(look || "muted");
      ctx.globalAlpha = 0.07;
      for (const [low, high] of bandsOf(own)) {
        const from = Math.max(bbox.left, plot.valToPos(low, "x", true));
        const to = high === Infinity ? right : Math.min(right, plot.valToPos(high, "x", true));
        if (to > from) ctx.fillRect(from, bbox.top, to - from, bbox.height);
      }
      for (const place of new Set(own.map((alert) => Math.round(plot.valToPos(alert.x, "x", true))))) {
        if (place < bbox.left || place > right) continue;
        ctx.globalAlpha = 0.55;
        ctx.fillRect(place, bbox.top, Math.max(1, devicePixelRatio), bbox.height);
        ctx.globalAlpha = 1;
        ctx.beginPath();
        ctx.moveTo(place, bbox.top - size);
        ctx.lineTo(place + 1.2 * size, bbox.top + size);
        ctx.lineTo(place - 1.2 * size, bbox.top + size);
        ctx.fill();
      }
    }
    ctx.restore();
  }

  /** Crosses at the foot for NaN, arrows at the edges for infinities. */
  #drawMarks(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const size = 4 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("bad");
    ctx.lineWidth = 1.6 * devicePixelRatio;
    for (const mark of this.#picture?.marks ?? []) {
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

function aligned(picture: Picture): uPlot.AlignedData {
  const lines = picture.lines.map(({ points: { x, y } }) => ({
    x,
    y: picture.isLog ? y.map((value) => (value !== null && value > 0 ? value : null)) : y,
  }));
  if (lines.length === 0) return [picture.marks.map((mark) => mark.x).sort((a, b) => a - b)];
  return align(lines) as uPlot.AlignedData;
}

/** The scale for values: never so narrow that neighbouring numbers are the same. */
function valueRange(low: number | null, high: number | null, isLog: boolean): [number, number] {
  if (low === null || high === null) return isLog ? [1, 10] : [0, 1];
  if (isLog) return uPlot.rangeLog(low, high, 10, false) as [number, number];
  const least = 1e-6 * Math.max(Math.abs(low), Math.abs(high));
  if (high - low >= least && high - low > 0) return uPlot.rangeNum(low, high, 0.1, true) as [number, number];
  if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
  return [low - 5 * least, high + 5 * least];
}

const mostDots = 60;

function numKnown(plot: uPlot, series: number): number {
  let count = 0;
  for (const value of plot.data[series] ?? []) if (value !== null && value !== undefined && ++count > mostDots) break;
  return count;
}

/** Two fingers on a chart: how much further apart they are, and where. */
function pinch(element: HTMLElement, on: (factor: number, at: number) => void): void {
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
