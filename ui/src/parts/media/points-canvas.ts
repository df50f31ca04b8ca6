/**
 * A cloud of points on a canvas: dragging turns it, the wheel and two fingers zoom, with Shift a drag moves it.
 *
 * This class holds the camera and handles input; `model/points` draws into pixels. Changes only request an animation
 * frame. The background stays transparent, so that it is the one of the page. The wheel zooms once the canvas has the
 * focus; before, it scrolls the page.
 */

import {
  axesOf,
  type Camera,
  drawPoints,
  firstView,
  type Frame,
  orbit,
  pan,
  type PointCloud,
  zoomBy,
} from "../../model/points";

const radiansPerPixel = 0.008;
const keyRadians = Math.PI / 24;
const maxRatio = 2;
const axisPx = 22;

export class PointsCanvas {
  readonly #canvas: HTMLCanvasElement;
  readonly #context: CanvasRenderingContext2D;
  readonly #observer: ResizeObserver;
  readonly #stop = new AbortController();
  readonly #pointers = new Map<number, { x: number; y: number }>();
  #cloud: PointCloud | null = null;
  #colours: Uint32Array = new Uint32Array(0);
  #camera: Camera;
  #image: ImageData | null = null;
  #buffers: Frame | null = null;
  #frame = 0;

  constructor(canvas: HTMLCanvasElement, camera: Camera = firstView) {
    const context = canvas.getContext("2d");
    if (context === null) throw new Error("This browser does not support canvas drawing.");
    this.#canvas = canvas;
    this.#context = context;
    this.#camera = camera;
    this.#observer = new ResizeObserver(() => this.redraw());
    this.#observer.observe(canvas);
    this.#listen();
  }

  get camera(): Camera {
    return this.#camera;
  }

  /** Replace the points. The camera stays, so that steps can be compared. */
  setCloud(cloud: PointCloud, colours: Uint32Array): void {
    [this.#cloud, this.#colours] = [cloud, colours];
    this.redraw();
  }

  /** Show the whole cloud again. */
  reset(): void {
    this.#moveTo(firstView);
  }

  redraw(): void {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  destroy(): void {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
    this.#stop.abort();
  }

  #moveTo(camera: Camera): void {
    this.#camera = camera;
    this.redraw();
  }

  // Drawing

  #draw(): void {
    this.#frame = 0;
    const ratio = Math.min(maxRatio, devicePixelRatio || 1);
    const [width, height] = [this.#canvas.clientWidth, this.#canvas.clientHeight].map((each) =>
      Math.round(each * ratio),
    ) as [number, number];
    if (this.#cloud === null || width === 0 || height === 0) return;
    if (!this.#image || !this.#buffers || this.#image.width !== width || this.#image.height !== height) {
      [this.#canvas.width, this.#canvas.height] = [width, height];
      this.#image = this.#context.createImageData(width, height);
      const pixels = new Uint32Array(this.#image.data.buffer);
      this.#buffers = { width, height, pixels, depths: new Float32Array(width * height) };
    }
    drawPoints(this.#cloud, this.#colours, this.#camera, this.#buffers);
    this.#context.putImageData(this.#image, 0, 0);
    this.#drawAxes(ratio, height);
  }

  /** Draw where x, y and z point to, in the lower left corner. */
  #drawAxes(ratio: number, height: number): void {
    const context = this.#context;
    const style = getComputedStyle(this.#canvas);
    const { right, up } = axesOf(this.#camera);
    context.save();
    context.translate(32 * ratio, height - 32 * ratio);
    context.scale(ratio, ratio);
    context.font = `11px ${style.fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 1.5;
    context.strokeStyle = context.fillStyle = style.color;
    for (const [index, name] of ["x", "y", "z"].entries()) {
      const [x, y] = [axisPx * right[index]!, -axisPx * up[index]!];
      context.beginPath();
      context.moveTo(0, 0);
      context.lineTo(x, y);
      context.stroke();
      context.fillText(name, 1.35 * x, 1.35 * y);
    }
    context.restore();
  }

  // Input

  #listen(): void {
    const { signal } = this.#stop;
    const canvas = this.#canvas;
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false, signal });
    canvas.addEventListener("pointerdown", (event) => this.#down(event), { signal });
    canvas.addEventListener("pointermove", (event) => this.#move(event), { signal });
    canvas.addEventListener("pointerup", (event) => this.#pointers.delete(event.pointerId), { signal });
    canvas.addEventListener("pointercancel", (event) => this.#pointers.delete(event.pointerId), { signal });
    canvas.addEventListener("dblclick", () => this.reset(), { signal });
    canvas.addEventListener("keydown", (event) => this.#press(event), { signal });
  }

  #wheel(event: WheelEvent): void {
    // A pinch on a touchpad arrives as wheel events with ctrl, in small steps.
    if (document.activeElement !== this.#canvas && !event.ctrlKey) return;
    event.preventDefault();
    const pixels = event.deltaY * ([1, 16, 400][event.deltaMode] ?? 1);
    const factor = Math.exp(-Math.max(-200, Math.min(200, pixels)) * (event.ctrlKey ? 0.01 : 0.002));
    this.#moveTo(zoomBy(this.#camera, factor));
  }

  #down(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.#canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
  }

  #move(event: PointerEvent): void {
    const before = this.#pointers.get(event.pointerId);
    if (before === undefined) return;
    const to = { x: event.offsetX, y: event.offsetY };
    const [dx, dy] = [to.x - before.x, to.y - before.y];
    const other = [...this.#pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const width = (point: { x: number; y: number }): number =>
        Math.max(10, Math.hypot(point.x - other.x, point.y - other.y));
      this.#moveTo(zoomBy(this.#camera, width(to) / width(before)));
    } else if (event.shiftKey) {
      const side = Math.max(1, Math.min(this.#canvas.clientWidth, this.#canvas.clientHeight));
      this.#moveTo(pan(this.#camera, dx / side, -dy / side));
    } else this.#moveTo(orbit(this.#camera, -dx * radiansPerPixel, dy * radiansPerPixel));
    this.#pointers.set(event.pointerId, to);
  }

  #press(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const camera = this.#camera;
    const views: Record<string, () => Camera> = {
      ArrowLeft: () => orbit(camera, keyRadians, 0),
      ArrowRight: () => orbit(camera, -keyRadians, 0),
      ArrowUp: () => orbit(camera, 0, -keyRadians),
      ArrowDown: () => orbit(camera, 0, keyRadians),
      "+": () => zoomBy(camera, 1.25),
      "=": () => zoomBy(camera, 1.25),
      "-": () => zoomBy(camera, 0.8),
      "0": () => firstView,
    };
    const view = views[event.key];
    if (!view) return;
    event.preventDefault();
    event.stopPropagation(); // the arrow keys of the page change the step
    this.#moveTo(view());
  }
}
