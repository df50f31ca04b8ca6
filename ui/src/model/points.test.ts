import { expect, test } from "vitest";
import {
  axesOf,
  categoriesOf,
  categoryColour,
  colouringsOf,
  drawPoints,
  firstView,
  type Frame,
  orbit,
  pan,
  parsePoints,
  pointColours,
  rangeAt,
  scaleColour,
  zoomBy,
} from "./points";

function npy(rows: number[][], changes: { header?: string; version?: number; extra?: number } = {}): ArrayBuffer {
  const stride = rows[0]?.length ?? 3;
  const dict = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows.length}, ${stride}), }`;
  const header = (changes.header ?? dict).padEnd(117) + "\n";
  const values = new Uint8Array(new Float32Array(rows.flat()).buffer);
  const bytes = new Uint8Array(10 + header.length + values.length + (changes.extra ?? 0));
  bytes.set([0x93, ...[..."NUMPY"].map((each) => each.charCodeAt(0)), changes.version ?? 1, 0]);
  bytes.set([header.length & 255, header.length >> 8], 8);
  bytes.set(
    [...header].map((each) => each.charCodeAt(0)),
    10,
  );
  bytes.set(values, 10 + header.length);
  return bytes.buffer;
}

const frameOf = (width: number, height: number): Frame => ({
  width,
  height,
  pixels: new Uint32Array(width * height),
  depths: new Float32Array(width * height),
});
const fromAbove = { ...firstView, azimuth: -Math.PI / 2, elevation: Math.PI / 2 }; // x to the right, y up

test("files of all kinds of rows are parsed", () => {
  const cloud = parsePoints(
    npy([
      [1, 2, 3],
      [-1, 0, 5],
    ]),
  );
  expect(cloud).toMatchObject({ numPoints: 2, stride: 3, low: [-1, 0, 3], high: [1, 2, 5], valueAt: null });
  expect([...cloud.rows]).toEqual([1, 2, 3, -1, 0, 5]);
  const places = [4, 6, 7].map((stride) => parsePoints(npy([new Array<number>(stride).fill(1)])));
  expect(places.map((each) => [each.valueAt, each.colourAt])).toEqual([
    [3, null],
    [null, 3],
    [3, 4],
  ]);
  expect(parsePoints(npy([]))).toMatchObject({ numPoints: 0, low: [0, 0, 0], high: [0, 0, 0] });
});

test("broken files say what is wrong", () => {
  const point = [[1, 2, 3]];
  const withShape = (shape: string, descr = "<f4", order = "False"): ArrayBuffer =>
    npy(point, { header: `{'descr': '${descr}', 'fortran_order': ${order}, 'shape': ${shape}, }` });
  const broken: [ArrayBuffer, RegExp][] = [
    [new ArrayBuffer(0), /no \.npy file/],
    [new TextEncoder().encode("<svg onload='attack()'/>").buffer as ArrayBuffer, /no \.npy file/],
    [npy(point).slice(0, 9), /no \.npy file/],
    [npy(point).slice(0, 60), /does not describe|must have/],
    [npy(point).slice(0, -1), /139 bytes.*must have 140/],
    [npy(point, { extra: 4 }), /144 bytes.*must have 140/],
    [npy(point, { version: 2 }), /version 2/],
    [withShape("(2, 3)"), /must have 152/],
    [withShape("(1, 5)"), /5 columns/],
    [withShape("(300001, 3)"), /300001 points are too many/],
    [withShape("(999999999999, 3)"), /does not describe/],
    [withShape("(3,)"), /does not describe/],
    [withShape("(1, 3)", "<f8"), /does not describe/],
    [withShape("(1, 3)", "|O"), /does not describe/],
    [withShape("(1, 3)", "<f4", "True"), /does not describe/],
    [npy(point, { header: "{" }), /does not describe/],
  ];
  for (const [data, reason] of broken) expect(() => parsePoints(data)).toThrow(reason);
  const wrongLength = new Uint8Array(npy(point));
  wrongLength.set([255, 255], 8); // the header seems to be longer than the file
  expect(() => parsePoints(wrongLength.buffer)).toThrow(/must have 65557/);
});

test("points are coloured by their colour, a value, a category or the height", () => {
  const cloud = parsePoints(
    npy([
      [0, 0, 0, 1, 255, 0, 16],
      [0, 0, 1, 3, 0, 255, 0],
      [0, 0, 2, 14, 1, 2, 3],
    ]),
  );
  expect(colouringsOf(cloud, true)).toEqual(["colour", "category", "height"]);
  expect(colouringsOf(cloud, false)).toEqual(["colour", "value", "height"]);
  expect([...pointColours(cloud, "colour", [])]).toEqual([0xff1000ff, 0xff00ff00, 0xff030201]);
  const [low, , high] = pointColours(cloud, "height", []);
  const packed = ([red = 0, green = 0, blue = 0]: number[]): number => 0xff000000 + blue * 65536 + green * 256 + red;
  expect([low, high]).toEqual([packed(scaleColour(0)), packed(scaleColour(1))]);
  const palette = ["#000001", "#000002", "#000003"];
  expect([...pointColours(cloud, "category", palette)]).toEqual([0xff020000, 0xff010000, 0xff030000]);
  expect(categoriesOf(cloud, 12)).toEqual([1, 3, 14]);
  expect(categoriesOf(cloud, 2)).toEqual([1, 3]);
  expect([categoryColour(NaN, 12), categoryColour(-13, 12)]).toEqual([0, 1]);
  expect(rangeAt(Float32Array.of(NaN, 2, Infinity, 1), 1, 0)).toEqual([1, 2]);
  expect(rangeAt(Float32Array.of(NaN), 1, 0)).toEqual([0, 0]);
  const flat = parsePoints(npy([[0, 0, 7]]));
  expect(pointColours(flat, "height", [])[0]).toBe(packed(scaleColour(128 / 255)));
});

test("points appear where the camera sees them", () => {
  const cloud = parsePoints(
    npy([
      [-1, -1, 0],
      [1, -1, 0],
      [-1, 1, 0],
      [1, 1, 0],
    ]),
  );
  const colours = Uint32Array.of(1, 2, 3, 4);
  const frame = frameOf(100, 60);
  drawPoints(cloud, colours, fromAbove, frame);
  const quarter = (colour: number): string => {
    const places = [...frame.pixels.keys()].filter((place) => frame.pixels[place] === colour);
    const of = (isHigh: (place: number) => boolean): boolean => places.every(isHigh);
    return `${of((place) => place % 100 < 50) ? "left" : "right"} ${of((place) => place < 3000) ? "top" : "bottom"}`;
  };
  expect([1, 2, 3, 4].map(quarter)).toEqual(["left bottom", "right bottom", "left top", "right top"]);
  drawPoints(cloud, colours, orbit(fromAbove, Math.PI, 0), frame);
  expect([1, 2, 3, 4].map(quarter)).toEqual(["right top", "left top", "right bottom", "left bottom"]);
  drawPoints(cloud, colours, pan(zoomBy(fromAbove, 0.7), 0.5, 0), frame);
  expect([1, 2, 3, 4].map(quarter)).toEqual(["right bottom", "right bottom", "right top", "right top"]);
});

test("the nearest point hides the others in any order", () => {
  const rows = [
    [0, 0, -1],
    [0, 0, 1],
  ];
  for (const order of [rows, rows.toReversed()]) {
    const cloud = parsePoints(npy(order));
    const frame = frameOf(40, 40);
    drawPoints(
      cloud,
      Uint32Array.from(order, ([, , z]) => (z === 1 ? 9 : 5)),
      fromAbove,
      frame,
    );
    expect(frame.pixels[20 * 40 + 20]).toBe(9);
  }
});

test("points that are not finite or behind the camera are not drawn", () => {
  const frame = frameOf(40, 40);
  const cloud = parsePoints(
    npy([
      [NaN, 0, 0],
      [0, Infinity, 0],
      [0, 0, 0],
    ]),
  );
  expect([cloud.low, cloud.high]).toEqual([
    [0, 0, 0],
    [0, 0, 0],
  ]);
  drawPoints(cloud, Uint32Array.of(1, 2, 3), firstView, frame);
  expect(new Set(frame.pixels)).toEqual(new Set([0, 3]));
  const pair = parsePoints(
    npy([
      [0, 0, -1],
      [0, 0, 1],
    ]),
  );
  drawPoints(pair, Uint32Array.of(5, 9), zoomBy(fromAbove, 20), frame);
  expect(frame.pixels.includes(9)).toBe(false);
  expect(frame.pixels.includes(5)).toBe(true);
});

test("the camera stays within its limits", () => {
  expect(orbit(firstView, 0, 9).elevation).toBe(Math.PI / 2);
  expect(orbit(firstView, 0, -9).elevation).toBe(-Math.PI / 2);
  expect(zoomBy(firstView, 1e9).zoom).toBe(200);
  expect(zoomBy(firstView, 0).zoom).toBe(0.2);
  expect(pan(firstView, 1e9, 1e9).target.every((each) => Math.abs(each) <= 2)).toBe(true);
  const { right, up, out } = axesOf(orbit(firstView, 0.3, -0.2));
  const dot = (a: number[], b: number[]): number => a.reduce((sum, each, i) => sum + each * (b[i] ?? 0), 0);
  for (const [a, b] of [
    [right, up],
    [up, out],
    [out, right],
  ] as const)
    expect(dot(a, b)).toBeCloseTo(0);
  for (const axis of [right, up, out]) expect(dot(axis, axis)).toBeCloseTo(1);
});
