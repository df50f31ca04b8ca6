/**
 * Writes SVG with the methods of a canvas, as far as `paintOverlay` uses them.
 *
 * The same code paints a chart on the screen, into a PNG and into an SVG, so that all three look alike.
 */

export type Painter = Pick<
  CanvasRenderingContext2D,
  | "save"
  | "restore"
  | "beginPath"
  | "closePath"
  | "moveTo"
  | "lineTo"
  | "rect"
  | "clip"
  | "stroke"
  | "fill"
  | "fillRect"
  | "fillText"
  | "setLineDash"
  | "strokeStyle"
  | "fillStyle"
  | "lineWidth"
  | "lineJoin"
  | "globalAlpha"
  | "font"
  | "textAlign"
  | "textBaseline"
>;

interface Style {
  strokeStyle: string;
  fillStyle: string;
  lineWidth: number;
  lineJoin: CanvasLineJoin;
  globalAlpha: number;
  font: string;
  textAlign: CanvasTextAlign;
  textBaseline: CanvasTextBaseline;
  dash: number[];
  clip: string;
}

const anchors: Partial<Record<CanvasTextAlign, string>> = { center: "middle", right: "end", end: "end" };
const baselines: Partial<Record<CanvasTextBaseline, string>> = { middle: "central", top: "hanging" };

export class SvgContext implements Painter {
  strokeStyle = "#000";
  fillStyle = "#000";
  lineWidth = 1;
  lineJoin: CanvasLineJoin = "miter";
  globalAlpha = 1;
  font = "11px sans-serif";
  textAlign: CanvasTextAlign = "start";
  textBaseline: CanvasTextBaseline = "alphabetic";

  readonly #parts: string[] = [];
  readonly #stack: Style[] = [];
  readonly #width: number;
  readonly #height: number;
  #path: string[] = [];
  #dash: number[] = [];
  #clip = "";
  #numClips = 0;

  constructor(width: number, height: number) {
    this.#width = width;
    this.#height = height;
  }

  save(): void {
    const { strokeStyle, fillStyle, lineWidth, lineJoin, globalAlpha, font, textAlign, textBaseline } = this;
    const style = { strokeStyle, fillStyle, lineWidth, lineJoin, globalAlpha, font, textAlign, textBaseline };
    this.#stack.push({ ...style, dash: this.#dash, clip: this.#clip });
  }

  restore(): void {
    const style = this.#stack.pop();
    if (!style) return;
    const { dash, clip, ...rest } = style;
    Object.assign(this, rest);
    this.#dash = dash;
    this.#clip = clip;
  }

  setLineDash(segments: number[]): void {
    this.#dash = segments;
  }

  beginPath(): void {
    this.#path = [];
  }

  closePath(): void {
    this.#path.push("Z");
  }

  moveTo(x: number, y: number): void {
    this.#path.push(`M${round(x)} ${round(y)}`);
  }

  lineTo(x: number, y: number): void {
    this.#path.push(`${this.#path.length ? "L" : "M"}${round(x)} ${round(y)}`);
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.#path.push(`M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}Z`);
  }

  clip(): void {
    const id = `clip-${this.#numClips++}`;
    this.#parts.push(`<clipPath id="${id}"><path d="${this.#path.join("")}"/></clipPath>`);
    this.#clip = ` clip-path="url(#${id})"`;
  }

  stroke(): void {
    const dash = this.#dash.length ? ` stroke-dasharray="${this.#dash.join(" ")}"` : "";
    this.#put(
      `<path d="${this.#path.join("")}" fill="none" stroke="${escape(this.strokeStyle)}" ` +
        `stroke-width="${this.lineWidth}" stroke-linejoin="${this.lineJoin}"${dash}`,
    );
  }

  fill(): void {
    this.#put(`<path d="${this.#path.join("")}" fill="${escape(this.fillStyle)}"`);
  }

  fillRect(x: number, y: number, width: number, height: number): void {
    this.beginPath();
    this.rect(x, y, width, height);
    this.fill();
  }

  fillText(text: string, x: number, y: number): void {
    const anchor = anchors[this.textAlign];
    const baseline = baselines[this.textBaseline];
    this.#put(
      `<text x="${round(x)}" y="${round(y)}" style="font: ${escape(this.font)}" fill="${escape(this.fillStyle)}"` +
        (anchor ? ` text-anchor="${anchor}"` : "") +
        (baseline ? ` dominant-baseline="${baseline}"` : ""),
      `${escape(text)}</text>`,
    );
  }

  #put(open: string, content?: string): void {
    const alpha = this.globalAlpha < 1 ? ` opacity="${round(this.globalAlpha)}"` : "";
    this.#parts.push(`${open}${alpha}${this.#clip}${content === undefined ? "/>" : `>${content}`}`);
  }

  text(): string {
    const size = `width="${this.#width}" height="${this.#height}" viewBox="0 0 ${this.#width} ${this.#height}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>\n${this.#parts.join("\n")}\n</svg>\n`;
  }
}

const round = (value: number): number => Math.round(value * 100) / 100;
const entities: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escape = (text: string): string => text.replace(/[&<>"]/g, (each) => entities[each] as string);
