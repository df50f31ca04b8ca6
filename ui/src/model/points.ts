/**
 * Clouds of points: parses the `.npy` files of float32 rows that the recorder writes, colours the points and draws them
 * into pixels, seen by a camera that orbits around them.
 *
 * The camera looks at a point near the middle of the cloud from a distance in units of the cloud's radius. A depth per
 * pixel decides which point is in front, so the points need no order.
 */

export interface PointCloud {
  numPoints: number;
  /** Values per point: x, y, z, and those of the other columns. */
  stride: number;
  rows: Float32Array;
  /** The smallest box around all finite points. */
  low: Vector;
  high: Vector;
  /** The place of the value in a row; null if there is none. */
  valueAt: number | null;
  /** The place of red, which green and blue follow, from 0 to 255. */
  colourAt: number | null;
}

export type Vector = [number, number, number];

export interface Camera {
  /** The angle around the z axis, which points up, and the one above the plane of x and y. In radians. */
  azimuth: number;
  elevation: number;
  zoom: number;
  /** The point in the middle of the picture, from the middle of the cloud, in radii. */
  target: Vector;
}

export type Colouring = "colour" | "value" | "category" | "height";

/** Buffers of one picture, with a value for each pixel. */
export interface Frame {
  width: number;
  height: number;
  /** Red, green, blue and opacity, from the lowest byte to the highest; 0 where there is no point. */
  pixels: Uint32Array;
  depths: Float32Array;
}

export const maxPoints = 300_000;
export const firstView: Camera = { azimuth: -0.9, elevation: 0.45, zoom: 1.3, target: [0, 0, 0] };

const magic = "\u0093NUMPY";
const strides = [3, 4, 6, 7];
const opaque = 0xff000000;
const distance = 2.6;
const nearest = 0.02;
/** The focal length as a share of the shorter side: a sphere of radius 1 at `distance` nearly fills it. */
const focalShare = 1.15;
/** Blue to red; each is visible on a light and on a dark background. */
const scale: Vector[] = [
  [47, 111, 224],
  [18, 160, 154],
  [108, 168, 44],
  [224, 138, 16],
  [217, 60, 60],
];

// Files ---------------------------------------------------------------------------------------------------------------

/** Parse a file; throws an error that says what is wrong with it. */
export function parsePoints(data: ArrayBuffer): PointCloud {
  const bytes = new Uint8Array(data);
  const textOf = (from: number, to: number): string => String.fromCharCode(...bytes.subarray(from, to));
  if (textOf(0, 6) !== magic || bytes.length < 10) throw new Error("This is no .npy file.");
  if (bytes[6] !== 1) throw new Error(`This is a .npy file of version ${bytes[6]}, not 1.`);
  const begin = 10 + bytes[8]! + 256 * bytes[9]!;
  const header = textOf(10, Math.min(begin, 1024));
  const shape = /'shape':\s*\((\d{1,9}),\s*(\d{1,2})\s*,?\)/.exec(header);
  if (!/'descr':\s*'<f4'/.test(header) || !/'fortran_order':\s*False/.test(header) || !shape)
    throw new Error("The header of this .npy file does not describe rows of float32 numbers.");
  const [numPoints, stride] = [Number(shape[1]), Number(shape[2])];
  if (!strides.includes(stride)) throw new Error(`This .npy file has ${stride} columns, not 3, 4, 6 or 7.`);
  if (numPoints > maxPoints) throw new Error(`${numPoints} points are too many; at most ${maxPoints} are shown.`);
  const end = begin + 4 * stride * numPoints;
  if (bytes.length !== end)
    throw new Error(`This file has ${bytes.length} bytes; with ${numPoints} points it must have ${end}.`);
  const rows = new Float32Array(data.slice(begin, end)); // a copy, because a view must begin at a multiple of 4
  return {
    numPoints,
    stride,
    rows,
    ...boundsOf(rows, stride),
    valueAt: stride === 4 || stride === 7 ? 3 : null,
    colourAt: stride >= 6 ? stride - 3 : null,
  };
}

function boundsOf(rows: Float32Array, stride: number): { low: Vector; high: Vector } {
  const [low, high]: [Vector, Vector] = [
    [Infinity, Infinity, Infinity],
    [-Infinity, -Infinity, -Infinity],
  ];
  for (const axis of [0, 1, 2] as const) [low[axis], high[axis]] = rangeAt(rows, stride, axis);
  return { low, high };
}

/** The smallest and the largest finite number in a column; 0 and 0 if there are none. */
export function rangeAt(rows: Float32Array, stride: number, column: number): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (let at = column; at < rows.length; at += stride) {
    const value = rows[at]!;
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 0];
}

// Colours -------------------------------------------------------------------------------------------------------------

/** The ways to colour a cloud; the first one is shown until the user chooses another. */
export function colouringsOf(cloud: PointCloud, hasLabels: boolean): Colouring[] {
  return [
    ...(cloud.colourAt !== null ? (["colour"] as const) : []),
    ...(cloud.valueAt !== null ? ([hasLabels ? "category" : "value"] as const) : []),
    "height",
  ];
}

/** The categories of the points, ascending; at most as many as asked for. */
export function categoriesOf(cloud: PointCloud, limit: number): number[] {
  const categories = new Set<number>();
  const { rows, stride, valueAt } = cloud;
  for (let at = valueAt ?? rows.length; at < rows.length && categories.size < limit; at += stride)
    categories.add(rows[at]!);
  return [...categories].sort((a, b) => a - b);
}

/** The place of a category in a palette of so many colours. */
export const categoryColour = (category: number, numColours: number): number =>
  Number.isFinite(category) ? Math.abs(Math.round(category)) % numColours : 0;

/** A colour for each point, as in `Frame.pixels`. `palette` has the colours of categories, as `#rrggbb`. */
export function pointColours(cloud: PointCloud, colouring: Colouring, palette: string[]): Uint32Array {
  const { rows, stride, numPoints, valueAt, colourAt } = cloud;
  const colours = new Uint32Array(numPoints);
  if (colouring === "colour" && colourAt !== null) {
    for (let i = 0, at = colourAt; i < numPoints; i++, at += stride)
      colours[i] = packed(rows[at]!, rows[at + 1]!, rows[at + 2]!);
  } else if (colouring === "category" && valueAt !== null) {
    const packedPalette = (palette.length ? palette : ["#808080"]).map(packedHex);
    for (let i = 0, at = valueAt; i < numPoints; i++, at += stride)
      colours[i] = packedPalette[categoryColour(rows[at]!, packedPalette.length)]!;
  } else {
    const column = colouring === "value" && valueAt !== null ? valueAt : 2;
    const [low, high] = rangeAt(rows, stride, column);
    const table = Array.from({ length: 256 }, (_, index) => packed(...scaleColour(index / 255)));
    for (let i = 0, at = column; i < numPoints; i++, at += stride)
      colours[i] = table[high > low ? Math.round((255 * (rows[at]! - low)) / (high - low)) : 128] ?? 0;
  }
  return colours;
}

/** The colour at a place from 0 to 1 on the scale of values. */
export function scaleColour(place: number): Vector {
  const position = Math.max(0, Math.min(1, place)) * (scale.length - 1);
  const index = Math.min(scale.length - 2, Math.floor(position));
  const [from, to] = [scale[index]!, scale[index + 1]!];
  return from.map((part, i) => Math.round(part + (to[i]! - part) * (position - index))) as Vector;
}

/** The scale of values as a gradient of CSS, from left to right. */
export const scaleGradient = `linear-gradient(to right, ${scale.map((each) => `rgb(${each.join(" ")})`).join(", ")})`;

const packed = (red: number, green: number, blue: number): number =>
  (opaque | ((blue & 255) << 16) | ((green & 255) << 8) | (red & 255)) >>> 0;

function packedHex(text: string): number {
  const hex = /^#([0-9a-f]{6})$/i.exec(text.trim())?.[1];
  const value = hex === undefined ? 0x808080 : parseInt(hex, 16);
  return packed(value >> 16, value >> 8, value);
}

// Camera --------------------------------------------------------------------------------------------------------------

export function orbit(camera: Camera, azimuth: number, elevation: number): Camera {
  const limit = Math.PI / 2;
  return {
    ...camera,
    azimuth: (camera.azimuth + azimuth) % (2 * Math.PI),
    elevation: Math.max(-limit, Math.min(limit, camera.elevation + elevation)),
  };
}

export const zoomBy = (camera: Camera, factor: number): Camera => ({
  ...camera,
  zoom: Math.max(0.2, Math.min(200, camera.zoom * factor)),
});

/** Move the cloud to the right and up, by shares of the shorter side of the picture. */
export function pan(camera: Camera, right: number, up: number): Camera {
  const axes = axesOf(camera);
  const unit = distance / camera.zoom / focalShare;
  const target = camera.target.map((at, i) =>
    Math.max(-2, Math.min(2, at - unit * (right * axes.right[i]! + up * axes.up[i]!))),
  ) as Vector;
  return { ...camera, target };
}

/** The directions in space that point to the right and up in the picture, and towards the viewer. */
export function axesOf({ azimuth, elevation }: Camera): { right: Vector; up: Vector; out: Vector } {
  const [sinA, cosA] = [Math.sin(azimuth), Math.cos(azimuth)];
  const [sinE, cosE] = [Math.sin(elevation), Math.cos(elevation)];
  return {
    right: [-sinA, cosA, 0],
    up: [-sinE * cosA, -sinE * sinA, cosE],
    out: [cosE * cosA, cosE * sinA, sinE],
  };
}

/** The middle of a cloud and half of its diagonal. */
export function sphereOf({ low, high }: PointCloud): { middle: Vector; radius: number } {
  const middle = low.map((each, i) => each / 2 + high[i]! / 2) as Vector;
  const radius = Math.hypot(...low.map((each, i) => high[i]! / 2 - each / 2));
  return { middle, radius: radius > 0 ? radius : 1 };
}

/** The width of a point that is as far away as the middle of the cloud. */
export function pointWidth(numPoints: number, width: number, height: number): number {
  const share = Math.sqrt((width * height) / Math.max(1, numPoints));
  return Math.max(1, Math.min(6, 0.3 * share, Math.min(width, height) / 80));
}

/** Draw the points. Only finite points in front of the camera are drawn. */
export function drawPoints(cloud: PointCloud, colours: Uint32Array, camera: Camera, frame: Frame): void {
  const { rows, stride, numPoints } = cloud;
  const { width, height, pixels, depths } = frame;
  pixels.fill(0);
  depths.fill(Infinity);
  const { middle, radius } = sphereOf(cloud);
  const { right, up, out } = axesOf(camera);
  const [rx, ry, rz] = right;
  const [ux, uy, uz] = up;
  const [ox, oy, oz] = out;
  const [mx, my, mz] = middle.map((each, i) => each + camera.target[i]! * radius) as Vector;
  const eye = distance / camera.zoom;
  const focal = focalShare * Math.min(width, height);
  const pointPx = pointWidth(numPoints, width, height) * eye;
  const largestPx = Math.max(2, Math.min(width, height) / 40);
  for (let i = 0, at = 0; i < numPoints; i++, at += stride) {
    const x = (rows[at]! - mx) / radius;
    const y = (rows[at + 1]! - my) / radius;
    const z = (rows[at + 2]! - mz) / radius;
    const depth = eye - (ox * x + oy * y + oz * z);
    if (!(depth > nearest)) continue; // also NaN
    const size = Math.max(1, Math.min(largestPx, Math.round((pointPx * camera.zoom ** 0.5) / depth)));
    const left = Math.round(width / 2 + (focal * (rx * x + ry * y + rz * z)) / depth - size / 2);
    const top = Math.round(height / 2 - (focal * (ux * x + uy * y + uz * z)) / depth - size / 2);
    if (!(left < width && left + size > 0 && top < height && top + size > 0)) continue;
    const [toRow, toColumn] = [Math.min(height, top + size), Math.min(width, left + size)];
    for (let row = Math.max(0, top); row < toRow; row++) {
      for (let place = row * width + Math.max(0, left), last = row * width + toColumn; place < last; place++) {
        if (depth < depths[place]!) {
          depths[place] = depth;
          pixels[place] = colours[i]!;
        }
      }
    }
  }
}
