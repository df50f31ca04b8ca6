/** How wide texts are on the screen. */

let context: CanvasRenderingContext2D | null = null;
let lastFont = "";

/** The width of a text in pixels, in a font as of `getComputedStyle`. */
export function textWidth(text: string, font: string): number {
  context ??= document.createElement("canvas").getContext("2d");
  if (!context) return 0;
  if (font !== lastFont) context.font = lastFont = font;
  return context.measureText(text).width;
}
