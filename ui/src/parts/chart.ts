/** A chart of lines on uPlot: zoom by dragging, a cursor shared by all charts, marks where values were not finite. */

import uPlot from "uplot";
import type { Mark, XAxis } from "../api";
import { duration, number } from "../model/format";
import type { Points } from "../model/series";
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
    this.#plot = new uPlot(this.#options(picture), data, this.#root);
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

  #size(): { width: number; height: number } {
    return { width: Math.max(80, this.#root.clientWidth), height: Math.max(80, this.#root.clientHeight) };
  }

  #options(picture: Picture): uPlot.Options {
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const isTime = picture.x === "time";
    return {
      ...this.#size(),
      padding: [8, 18, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: isTime, range: (_, low, high) => this.#range(low, high) },
        y: { distr: picture.isLog ? 3 : 1 },
      },
      axes: [
        { ...axis, size: 26, ...(isTime ? {} : { values: (_: uPlot, places: number[]) => places.map((place) => placeText(place, picture.x)) }) },
        { ...axis, size: (_, values) => 12 + 6.6 * Math.max(2, ...(values ?? []).map((text) => text?.length ?? 0)), values: (_, values, __, ___, step) => values.map((value) => (value === null ? "" : tick(value, picture.isLog ? 0 : step))) },
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
          points: { show: numKnown(line) <= 60 ? true : undefined, size: 4 } as uPlot.Series.Points,
        })),
      ],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        sync: { key: shared, setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        bind: {
          dblclick: () => () => {
            this.#on.reset();
            return null;
          },
        },
      },
      hooks: {
        setSelect: [(plot) => this.#selected(plot)],
        setCursor: [(plot) => this.#on.cursor((plot.cursor.left ?? -1) < 0 ? null : plot.posToVal(plot.cursor.left as number, "x"))],
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
    if (width > 3) this.#on.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
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

/** uPlot wants one x for all lines: places that a line does not have are undefined in it, which joins its points. */
function aligned(picture: Picture): uPlot.AlignedData {
  const tables = picture.lines.map(({ points }): uPlot.AlignedData => [points.x, picture.isLog ? points.y.map((y) => (y !== null && y > 0 ? y : null)) : points.y]);
  if (tables.length === 0) return [picture.marks.length ? picture.marks.map((mark) => mark.x).sort((a, b) => a - b) : []];
  return tables.length === 1 ? (tables[0] as uPlot.AlignedData) : uPlot.join(tables, tables.map(() => [2]));
}

function numKnown(line: DrawnLine): number {
  return line.points.x.length;
}

/** A number on the scale, with as many digits as tell it from its neighbours. */
function tick(value: number, step: number): string {
  const size = Math.abs(value);
  if (step <= 0 || size >= 1e6 || (size > 0 && size < 1e-3)) {
    const digits = step > 0 && size > 0 ? Math.max(1, Math.ceil(Math.log10(size / step)) + 1) : 3;
    return size >= 1e-3 && size < 1e6 ? number(value, 4) : size === 0 ? "0" : Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
  }
  let digits = 0;
  while (digits < 12 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
  return value.toLocaleString("en-US", { maximumFractionDigits: digits }).replaceAll(",", "\u202f");
}

export function placeText(place: number, x: XAxis): string {
  if (x === "relative") return duration(place);
  if (x === "step" && Math.abs(place) >= 10_000) return `${Number((place / (Math.abs(place) >= 1e6 ? 1e6 : 1e3)).toPrecision(4))}${Math.abs(place) >= 1e6 ? "M" : "k"}`;
  return number(place, 5);
}
