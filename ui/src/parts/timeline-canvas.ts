/**
 * The interactive timeline of a run on a canvas: panning, zooming, scrolling and selecting spans.
 *
 * This class holds the state and handles input; `model/timeline` decides what is visible, and `timeline-paint` draws
 * it. Changes only request an animation frame, so that many changes cost one drawing. CSS sets the size of the canvas;
 * its `width` and `height` follow in device pixels.
 */

import { clamp, pan, ticks, type TimeRange, zoom } from "../model/time-range";
import { fit, hitTest, type Layout, nextSpan, type Target } from "../model/timeline";
import { groupMarks, type MarkGroup, type TimelineMark } from "../model/timeline-marks";
import * as paint from "./timeline-paint";

export type Hovered = Target | { kind: "marks"; group: MarkGroup };

export interface TimelineEvents {
  /** The item under the pointer, at x and y pixels within the canvas. */
  hover(target: Hovered | null, x: number, y: number): void;
  /** The index of the selected span. */
  select(index: number | null): void;
  /** The user, or a call of `zoomBy`, `panBy`, `fitAll` or `fitSelected`, changed the visible range. */
  view(view: TimeRange): void;
}

interface Point {
  x: number;
  y: number;
}

const sharesHeightPx = 48;
const marksHeightPx = 24;
const axisHeightPx = 24;
const clickTolerancePx = 4;
const markReachPx = 9;

export class TimelineCanvas {
  readonly #canvas: HTMLCanvasElement;
  readonly #context: CanvasRenderingContext2D;
  readonly #on: TimelineEvents;
  readonly #observer: ResizeObserver;
  readonly #stop = new AbortController();
  readonly #pointers = new Map<number, Point>();
  #theme: paint.Theme;
  #layout: Layout | null = null;
  #marks: TimelineMark[] = [];
  #stack: paint.Stack | null = null;
  #extent: TimeRange = { low: 0, high: 1 };
  #view: TimeRange = { low: 0, high: 1 };
  #now = 0;
  #selected: number | null = null;
  #scroll = 0;
  #size = { width: 0, height: 0, ratio: 1 };
  #drag: { from: Point; isRange: boolean; hasMoved: boolean } | null = null;
  #frame = 0;

  constructor(canvas: HTMLCanvasElement, on: TimelineEvents) {
    const context = canvas.getContext("2d", { alpha: false });
    if (context === null) throw new Error("This browser does not support canvas drawing.");
    this.#canvas = canvas;
    this.#context = context;
    this.#on = on;
    this.#theme = readTheme(canvas, context);
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(canvas);
    this.#listen();
    this.#resize();
  }

  /** Replace the data. The visible range stays as far as it lies within the extent. */
  setData(layout: Layout, marks: TimelineMark[], extent: TimeRange): void {
    const selected = this.#selected === null ? undefined : this.#layout?.spans.id[this.#selected];
    const index = selected === undefined ? -1 : layout.spans.id.indexOf(selected);
    this.#selected = index < 0 ? null : index;
    this.#layout = layout;
    this.#marks = marks;
    this.#extent = extent;
    this.#view = clamp(this.#view, extent);
    this.#scrollTo(this.#scroll);
  }

  /** Set the time shares of phases, stacked bottom-up in this order. All must cover the same windows. */
  setShares(series: paint.Share[]): void {
    this.#stack = series.length > 0 ? paint.stackOf(series) : null;
    this.#scrollTo(this.#scroll);
  }

  setView(view: TimeRange): void {
    this.#view = clamp(view, this.#extent);
    this.#redraw();
  }

  /** Select a span by its index in the current layout. */
  setSelected(index: number | null): void {
    this.#selected = index;
    this.#redraw();
  }

  /** Set the current time, at which open spans end. */
  setNow(time: number): void {
    this.#now = time;
    this.#redraw();
  }

  /** Set the colours; by default those of the page. */
  setTheme(theme: paint.Theme = readTheme(this.#canvas, this.#context)): void {
    this.#theme = theme;
    this.#redraw();
  }

  zoomBy(factor: number, at = (this.#view.low + this.#view.high) / 2): void {
    this.#moveTo(zoom(this.#view, factor, at));
  }

  /** Move by a fraction of the visible range; positive is later. */
  panBy(part: number): void {
    this.#moveTo(pan(this.#view, part * (this.#view.high - this.#view.low)));
  }

  scrollBy(lanes: number): void {
    this.#scrollTo(this.#scroll + lanes * paint.laneHeightPx);
  }

  /** Select the next visible span, or the one before, and show its lane. */
  selectNext(by: 1 | -1): void {
    if (this.#layout === null) return;
    const next = nextSpan(this.#layout, this.#selected, by, this.#view, this.#now);
    if (next === null) return;
    const top = this.#layout.lane[next]! * paint.laneHeightPx;
    if (top < this.#scroll) this.#scrollTo(top);
    else if (top + paint.laneHeightPx > this.#scroll + this.#lanes.height)
      this.#scrollTo(top + paint.laneHeightPx - this.#lanes.height);
    this.setSelected(next);
    this.#on.select(next);
  }

  fitAll(): void {
    this.#moveTo(this.#extent);
  }

  fitSelected(): void {
    if (this.#layout !== null && this.#selected !== null) this.#moveTo(fit(this.#layout, this.#selected, this.#now));
    else this.fitAll();
  }

  destroy(): void {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
    this.#stop.abort();
  }

  // Geometry

  get #lanes(): paint.Band {
    const top = (this.#stack === null ? 0 : sharesHeightPx) + marksHeightPx;
    return { top, height: Math.max(0, this.#size.height - top - axisHeightPx) };
  }

  get #contentHeight(): number {
    return (this.#layout?.numLanes ?? 0) * paint.laneHeightPx;
  }

  get #secondsPerPixel(): number {
    return (this.#view.high - this.#view.low) / Math.max(1, this.#size.width);
  }

  #timeAt(x: number): number {
    return this.#view.low + x * this.#secondsPerPixel;
  }

  #moveTo(view: TimeRange): void {
    this.#view = clamp(view, this.#extent);
    this.#redraw();
    this.#on.view(this.#view);
  }

  #scrollTo(scroll: number): void {
    const most = Math.max(0, this.#contentHeight - this.#lanes.height);
    this.#scroll = Math.max(0, Math.min(most, scroll));
    // Let touch scroll the page if there is nothing to scroll here.
    this.#canvas.style.touchAction = most > 0 ? "none" : "pan-y";
    this.#redraw();
  }

  #at(point: Point): Hovered | null {
    const { top, height } = this.#lanes;
    if (point.y < top && point.y >= top - marksHeightPx) return this.#marksAt(point.x);
    if (this.#layout === null || point.y < top || point.y >= top + height) return null;
    const lane = Math.floor((point.y - top + this.#scroll) / paint.laneHeightPx);
    return hitTest(this.#layout, this.#timeAt(point.x), lane, this.#secondsPerPixel, this.#now);
  }

  #marksAt(x: number): Hovered | null {
    const time = this.#timeAt(x);
    const groups = groupMarks(this.#marks, this.#view, this.#size.width);
    groups.sort((a, b) => Math.abs(a.time - time) - Math.abs(b.time - time));
    const group = groups[0];
    const isNear = group !== undefined && Math.abs(group.time - time) <= markReachPx * this.#secondsPerPixel;
    return isNear ? { kind: "marks", group } : null;
  }

  // Drawing

  #resize(): void {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const ratio = devicePixelRatio || 1;
    const { width: oldWidth, height: oldHeight, ratio: oldRatio } = this.#size;
    if (width === oldWidth && height === oldHeight && ratio === oldRatio) return;
    this.#size = { width, height, ratio };
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    this.#scrollTo(this.#scroll);
  }

  #redraw(): void {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #draw(): void {
    this.#resize();
    this.#frame = 0;
    const { width, height } = this.#size;
    const lanes = this.#lanes;
    if (width === 0 || lanes.height === 0) return;
    const frame = { context: this.#context, theme: this.#theme, view: this.#view, now: this.#now, ...this.#size };
    const marksBand = { top: lanes.top - marksHeightPx, height: marksHeightPx };
    const found = ticks(this.#view, width, this.#extent.low);
    paint.clear(frame);
    paint.paintGrid(frame, found);
    if (this.#stack !== null) paint.paintShares(frame, this.#stack, { top: 0, height: sharesHeightPx });
    paint.clipped(frame, lanes, () => this.#drawLanes(frame, lanes));
    paint.paintMarks(frame, groupMarks(this.#marks, this.#view, width), marksBand);
    paint.paintAxis(frame, found, { top: height - axisHeightPx, height: axisHeightPx });
    if (this.#drag?.isRange) {
      const to = this.#pointers.values().next().value ?? this.#drag.from;
      paint.paintRange(frame, this.#drag.from.x, to.x, { top: 0, height: height - axisHeightPx });
    }
  }

  #drawLanes(frame: paint.Frame, lanes: paint.Band): void {
    if (this.#layout === null) return;
    paint.paintLanes(frame, this.#layout, lanes, this.#scroll, this.#selected);
    if (this.#layout.spans.duration_s.includes(null)) paint.paintNow(frame, lanes);
    if (this.#contentHeight > lanes.height) paint.paintScrollbar(frame, lanes, this.#scroll, this.#contentHeight);
  }

  // Input

  #listen(): void {
    const { signal } = this.#stop;
    const canvas = this.#canvas;
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false, signal });
    canvas.addEventListener("pointerdown", (event) => this.#down(event), { signal });
    canvas.addEventListener("pointermove", (event) => this.#move(event), { signal });
    canvas.addEventListener("pointerup", (event) => this.#up(event, true), { signal });
    canvas.addEventListener("pointercancel", (event) => this.#up(event, false), { signal });
    canvas.addEventListener("pointerleave", () => this.#on.hover(null, 0, 0), { signal });
    canvas.addEventListener("dblclick", (event) => this.#zoomToItemAt(event), { signal });
  }

  #wheel(event: WheelEvent): void {
    event.preventDefault();
    const pixels = [1, 16, 400][event.deltaMode] ?? 1;
    const [dx, dy] = event.shiftKey && event.deltaX === 0 ? [event.deltaY, 0] : [event.deltaX, event.deltaY];
    if (Math.abs(dx) > Math.abs(dy)) {
      this.#moveTo(pan(this.#view, dx * pixels * this.#secondsPerPixel));
    } else {
      // A pinch on a touchpad arrives as wheel events with ctrl, in small steps.
      const factor = Math.exp(-Math.max(-200, Math.min(200, dy * pixels)) * (event.ctrlKey ? 0.01 : 0.002));
      this.#moveTo(zoom(this.#view, factor, this.#timeAt(event.offsetX)));
    }
  }

  #down(event: PointerEvent): void {
    if (event.button !== 0) return;
    const from = { x: event.offsetX, y: event.offsetY };
    this.#canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, from);
    this.#drag = { from, isRange: event.shiftKey, hasMoved: this.#pointers.size > 1 };
    this.#on.hover(null, from.x, from.y);
  }

  #move(event: PointerEvent): void {
    const to = { x: event.offsetX, y: event.offsetY };
    const before = this.#pointers.get(event.pointerId);
    if (before === undefined || this.#drag === null) {
      this.#on.hover(this.#at(to), to.x, to.y);
      return;
    }
    const { from, isRange } = this.#drag;
    if (!this.#drag.hasMoved && Math.hypot(to.x - from.x, to.y - from.y) < clickTolerancePx) return;
    this.#drag.hasMoved = true;
    if (this.#pointers.size === 2) this.#pinch(event.pointerId, before, to);
    else if (!isRange) {
      this.#moveTo(pan(this.#view, (before.x - to.x) * this.#secondsPerPixel));
      this.#scrollTo(this.#scroll + before.y - to.y);
    }
    this.#pointers.set(event.pointerId, to);
    this.#redraw();
  }

  /** The content under both fingers stays under them. */
  #pinch(moved: number, before: Point, to: Point): void {
    for (const [id, other] of this.#pointers) {
      if (id === moved) continue;
      const factor = Math.max(10, Math.abs(to.x - other.x)) / Math.max(10, Math.abs(before.x - other.x));
      this.#moveTo(zoom(this.#view, factor, this.#timeAt(other.x)));
    }
  }

  #up(event: PointerEvent, isClick: boolean): void {
    const drag = this.#drag;
    if (!this.#pointers.delete(event.pointerId) || drag === null) return;
    this.#drag = this.#pointers.size > 0 ? { ...drag, isRange: false, hasMoved: true } : null;
    this.#redraw();
    if (!isClick || this.#drag !== null) return;
    if (!drag.hasMoved) this.#selectAt({ x: event.offsetX, y: event.offsetY });
    else if (drag.isRange) this.#zoomToPixels(drag.from.x, event.offsetX);
  }

  #zoomToPixels(from: number, to: number): void {
    const [low, high] = [this.#timeAt(Math.min(from, to)), this.#timeAt(Math.max(from, to))];
    if (Math.abs(to - from) >= clickTolerancePx) this.#moveTo({ low, high });
  }

  #selectAt(point: Point): void {
    const found = this.#at(point);
    this.setSelected(found?.kind === "span" ? found.index : null);
    this.#on.select(this.#selected);
  }

  #zoomToItemAt(event: MouseEvent): void {
    const found = this.#at({ x: event.offsetX, y: event.offsetY });
    if (found?.kind === "span" && this.#layout !== null) this.#moveTo(fit(this.#layout, found.index, this.#now));
    else if (found?.kind === "heap") this.#moveTo({ low: found.heap.start, high: found.heap.end });
    else this.fitAll();
  }
}

/** Read the colours from the CSS variables of an element. */
export function readTheme(element: HTMLElement, context: CanvasRenderingContext2D): paint.Theme {
  const style = getComputedStyle(element);
  const read = (name: string, otherwise: string): string => style.getPropertyValue(name).trim() || otherwise;
  const [panel, text] = [read("--panel", "#ffffff"), read("--text", "#1b2230")];
  const [bad, warn] = [read("--bad", "#c2272d"), read("--warn", "#9a6200")];
  const palette = Array.from({ length: 12 }, (_, i) => read(`--palette-${i}`, `hsl(${i * 30} 55% 50%)`));
  const hatches = new Map([
    ["error", hatch(context, "/", bad, panel)],
    ["died", hatch(context, "/\\", bad, panel)],
    ["left_open", hatch(context, "\\", warn, panel)],
  ]);
  const textColours = textColoursFor(palette, panel, text);
  const [bg, line] = [read("--bg", "#f6f7f9"), read("--line", "#dde1e8")];
  const [muted, accent] = [read("--muted", "#5d6879"), read("--accent", "#0b6bcb")];
  return { bg, panel, line, text, muted, accent, warn, bad, palette, textColours, hatches };
}

/** A pattern of strokes with an outline, visible on any colour. */
function hatch(context: CanvasRenderingContext2D, strokes: string, colour: string, edge: string): CanvasPattern {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d")!;
  for (const [width, style] of [
    [3, edge],
    [1.5, colour],
  ] as const) {
    pen.lineWidth = width;
    pen.strokeStyle = style;
    pen.beginPath();
    for (const shift of [-8, 0, 8]) {
      if (strokes.includes("/")) (pen.moveTo(shift - 2, 10), pen.lineTo(shift + 10, -2));
      if (strokes.includes("\\")) (pen.moveTo(shift - 2, -2), pen.lineTo(shift + 10, 10));
    }
    pen.stroke();
  }
  return context.createPattern(tile, "repeat")!;
}

/** For each colour, the text colour with more contrast. */
function textColoursFor(palette: string[], one: string, other: string): string[] {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;
  const luminance = (colour: string): number => {
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [red = 0, green = 0, blue = 0] = Array.from(
      context.getImageData(0, 0, 1, 1).data,
      (part) => (part / 255) ** 2.2,
    );
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  };
  const contrast = (a: number, b: number): number => Math.max(a, b) / Math.min(a, b);
  return palette.map((background) =>
    contrast(luminance(background), luminance(one)) >= contrast(luminance(background), luminance(other)) ? one : other,
  );
}
