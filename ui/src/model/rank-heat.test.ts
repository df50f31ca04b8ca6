import { expect, test } from "vitest";
import { cellColour, excessOf, parseHeat } from "./rank-heat";

const encode = (shape: object, cells: number[]): ArrayBuffer => {
  const line = new TextEncoder().encode(`${JSON.stringify(shape)}\n`);
  return new Uint8Array([...line, ...cells]).buffer;
};

const shape = { ranks: [0, 1], first_iteration: 15, last_iteration: 47, num_columns: 3 };

test("a matrix is a line of JSON and a byte per cell", () => {
  const heat = parseHeat(encode(shape, [0, 10, 10, 1, 255, 43]));
  expect(heat).toMatchObject({ ranks: [0, 1], firstIteration: 15, lastIteration: 47, numColumns: 3 });
  expect([...heat!.cells]).toEqual([0, 10, 10, 1, 255, 43]);
  expect(parseHeat(encode(shape, [1, 2]))).toBeNull();
  expect(parseHeat(new ArrayBuffer(0))).toBeNull();
});

test("cells have a fixed scale", () => {
  expect(excessOf(0)).toBeNull();
  expect(excessOf(1)).toBeCloseTo(-0.1);
  expect(excessOf(255)).toBeCloseTo(0.5);
  expect(cellColour(255, true)).toEqual([220, 38, 38]);
  expect(cellColour(43, false)).toEqual([226, 232, 240]);
  expect(cellColour(0, true)).not.toEqual(cellColour(43, true));
});
