/**
 * The canvases of an overlay: one with all lines, painted only when they change, and one above it with the crosshair and
 * the highlighted line, painted with every move of the pointer.
 */

import { nearestLine } from "../../model/overlay";
import { shareOf, valueAt } from "../../model/scale";
import { type Area, clipToArea, paintLine, paintOverlay, placer, type Scene } from "./overlay-paint";

export interface OverlayEvents {
  /** The pointer's position on the x axis and the line next to it; null if it left the chart. */
  cursor(at: { x: number; id: string | null } | null): void;
  zoom(low: number, high: number): void;
  reset(): void;
}

/** More lines than this are dimmed while one is highlighted. */
const maxUndimmed = 6;
const minDrag = 4;
/** The narrowest range that can be zoomed into: one step, or the resolution of times. */
const minWidths: Record<string, number> = {
  step: 1,
  relative_step: 1,
  relative: 1e-5,
  training_time: 1e-5,
  time: 1e-5,
};
const maxPinch = 20;

export class OverlayCanvas {
  readonly #root: HTMLElement;
  readonly #on: OverlayEvents | null;
  readonly #base = document.createElement("canvas");
  readonly #top = document.createElement("canvas");
  readonly #observer: ResizeObserver;
  #scene: Scene | null = null;
  #area: Area = { left: 0, top: 0, width: 1, height: 1 };
  #cursor: { x: number | null; id: string | null } | null = null;
  /** Where a drag began and is now, in pixels. */
  #drag: [number, number] | null = null;
  /** Where fingers are, in pixels, and how far apart two of them were first. */
  readonly #touches = new Map<number, number>();
  #pinched = 0;
  #frame = 0;

  /** Without `on`, it is a picture that does not react to the pointer. */
  constructor(root: HTMLElement, on: OverlayEvents | null) {
    this.#root = root;
    this.#on = on;
    for (const canvas of [this.#base, this.#top]) {
      canvas.setAttribute("aria-hidden", "true");
      canvas.style.position = "absolute";
      canvas.style.inset = "0";
      root.append(canvas);
    }
    this.#observer = new ResizeObserver(() => this.#paint());
    this.#observer.observe(root);
    if (!on) return;
    root.addEventListener("pointerdown", this.#onDown);
    root.addEventListener("pointermove", this.#onMove);
    root.addEventListener("pointerup", this.#onUp);
    root.addEventListener("pointercancel", this.#onCancel);
    root.addEventListener("pointerleave", this.#onLeave);
    root.addEventListener("dblclick", this.#onDouble);
  }

  destroy(): void {
    this.#observer.disconnect();
    cancelAnimationFrame(this.#frame);
    this.#root.removeEventListener("pointerdown", this.#onDown);
    this.#root.removeEventListener("pointermove", this.#onMove);
    this.#root.removeEventListener("pointerup", this.#onUp);
    this.#root.removeEventListener("pointercancel", this.#onCancel);
    this.#root.removeEventListener("pointerleave", this.#onLeave);
    this.#root.removeEventListener("dblclick", this.#onDouble);
    this.#base.remove();
    this.#top.remove();
  }

  /** Draw a scene; null clears the chart. */
  draw(scene: Scene | null): void {
    this.#scene = scene;
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#paint());
  }

  /** Show the crosshair at x, and highlight a line. */
  point(cursor: { x: number | null; id: string | null } | null): void {
    this.#cursor = cursor;
    this.#paintTop();
  }

  /** Zoom by a factor around the crosshair, or around the middle. */
  zoomBy(factor: number): void {
    const scene = this.#scene;
    if (!scene) return;
    const place = this.#cursor === null || this.#cursor.x === null ? 0.5 : shareOf(scene.x, this.#cursor.x);
    this.#zoomAt(scene, place >= 0 && place <= 1 ? place : 0.5, factor);
  }

  /** The distance of an x value from the left edge, in pixels. */
  leftOf(x: number): number {
    return this.#scene ? placer(this.#scene, this.#area).x(x) : 0;
  }

  #size(): { width: number; height: number } {
    return { width: Math.max(80, this.#root.clientWidth), height: Math.max(80, this.#root.clientHeight) };
  }

  #paint(): void {
    const context = this.#prepare(this.#base);
    if (!context) return;
    const { width, height } = this.#size();
    if (this.#scene) this.#area = paintOverlay(context, this.#scene, width, height);
    this.#root.dataset["painted"] = String(new Set(this.#scene?.lines.map((line) => line.id)).size);
    this.#paintTop();
  }

  /** Clear a canvas, and give it the size of the element; a new size, even the same one, allocates it again. */
  #prepare(canvas: HTMLCanvasElement): CanvasRenderingContext2D | null {
    const { width, height } = this.#size();
    const ratio = devicePixelRatio;
    const [numColumns, numRows] = [Math.round(width * ratio), Math.round(height * ratio)];
    const context = canvas.getContext("2d");
    if (canvas.width !== numColumns || canvas.height !== numRows) {
      canvas.width = numColumns;
      canvas.height = numRows;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    context?.setTransform(ratio, 0, 0, ratio, 0, 0);
    context?.clearRect(0, 0, width + 1, height + 1);
    return context;
  }

  #paintTop(): void {
    const scene = this.#scene;
    const context = this.#prepare(this.#top);
    if (!scene || !context) return;
    const area = this.#area;
    const place = placer(scene, area);
    context.save();
    clipToArea(context, area);
    const id = this.#cursor?.id ?? null;
    const hasOthers = id !== null && scene.lines.some((line) => line.id !== id);
    const lines = hasOthers ? scene.lines.filter((line) => line.id === id) : [];
    if (lines.length > 0 && new Set(scene.lines.map((line) => line.id)).size > maxUndimmed) {
      context.globalAlpha = 0.6;
      context.fillStyle = scene.theme.panel;
      context.fillRect(0, area.top, this.#root.clientWidth, area.height);
      context.globalAlpha = 1;
    }
    for (const line of lines)
      paintLine(context, line.isBehind ? line : { ...line, alpha: 1, width: Math.max(2.4, line.width) }, place);
    if (this.#cursor && this.#cursor.x !== null) {
      context.strokeStyle = scene.theme.muted;
      context.lineWidth = 1;
      context.setLineDash([3, 3]);
      const x = Math.round(place.x(this.#cursor.x)) + 0.5;
      context.beginPath();
      context.moveTo(x, area.top);
      context.lineTo(x, area.top + area.height);
      context.stroke();
      context.setLineDash([]);
    }
    if (this.#drag) {
      const [from, to] = this.#drag;
      context.globalAlpha = 0.18;
      context.fillStyle = scene.theme.text;
      context.fillRect(Math.min(from, to), area.top, Math.abs(to - from), area.height);
    }
    context.restore();
  }

  #at(event: PointerEvent): { left: number; x: number; id: string | null } | null {
    const scene = this.#scene;
    if (!scene) return null;
    const bounds = this.#root.getBoundingClientRect();
    const area = this.#area;
    const left = Math.max(area.left, Math.min(area.left + area.width, event.clientX - bounds.left));
    const x = valueAt(scene.x, (left - area.left) / area.width);
    const share = 1 - (event.clientY - bounds.top - area.top) / area.height;
    return { left, x, id: nearestLine(scene.lines, x, scene.y, share) };
  }

  /** Zoom, but not closer than makes sense on the axis. */
  #zoom(low: number, high: number): void {
    const least = minWidths[this.#scene?.axis ?? ""] ?? 0;
    const middle = (low + high) / 2;
    if (high - low < least) this.#on?.zoom(middle - least / 2, middle + least / 2);
    else this.#on?.zoom(low, high);
  }

  #distance(): number {
    const [a = 0, b = 0] = this.#touches.values();
    return Math.abs(a - b);
  }

  /** Two fingers have moved apart or together: keep the position between them where it is. */
  #pinch(scene: Scene): void {
    const factor = Math.min(maxPinch, Math.max(1 / maxPinch, this.#distance() / this.#pinched));
    const [a = 0, b = 0] = this.#touches.values();
    const { left, width } = this.#area;
    this.#zoomAt(scene, ((a + b) / 2 - left) / width, factor);
  }

  /** Zoom around a place between the left edge, 0, and the right edge, 1, which stays where it is. */
  #zoomAt(scene: Scene, place: number, factor: number): void {
    this.#zoom(valueAt(scene.x, place - place / factor), valueAt(scene.x, place + (1 - place) / factor));
  }

  #onDown = (event: PointerEvent): void => {
    const at = this.#at(event);
    if (!at || event.button !== 0) return;
    if (event.pointerType === "mouse") {
      this.#drag = [at.left, at.left];
      this.#root.setPointerCapture(event.pointerId);
      return;
    }
    this.#touches.set(event.pointerId, at.left);
    if (this.#touches.size === 2) this.#pinched = this.#distance();
    this.#on?.cursor({ x: at.x, id: at.id });
  };

  #onMove = (event: PointerEvent): void => {
    const at = this.#at(event);
    if (!at) return;
    if (this.#drag) this.#drag = [this.#drag[0], at.left];
    if (this.#touches.has(event.pointerId)) this.#touches.set(event.pointerId, at.left);
    this.#on?.cursor({ x: at.x, id: at.id });
    if (this.#drag) this.#paintTop();
  };

  #onUp = (event: PointerEvent): void => {
    const [drag, at, scene] = [this.#drag, this.#at(event), this.#scene];
    this.#drag = null;
    this.#onCancel(event);
    if (!drag || !at || !scene || Math.abs(at.left - drag[0]) < minDrag) return;
    const from = valueAt(scene.x, (drag[0] - this.#area.left) / this.#area.width);
    this.#zoom(Math.min(from, at.x), Math.max(from, at.x));
  };

  #onCancel = (event: PointerEvent): void => {
    const minPinch = 10;
    if (this.#touches.size === 2 && this.#touches.has(event.pointerId) && this.#pinched > minPinch && this.#scene)
      this.#pinch(this.#scene);
    this.#touches.delete(event.pointerId);
  };

  #onLeave = (event: PointerEvent): void => {
    if (event.pointerType === "mouse" && !this.#drag) this.#on?.cursor(null);
  };

  #onDouble = (): void => this.#on?.reset();
}
