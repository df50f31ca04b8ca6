import { expect, test } from "vitest";
import { countRows, lineFrom, rowAt, rowOf } from "./log";

const ranges = [
  { first: 0, end: 3 },
  { first: 10, end: 12 },
];

test("a gap between kept lines is one row", () => {
  expect(countRows(ranges)).toBe(6);
  expect([0, 2, 3, 4, 5, 6].map((index) => rowAt(ranges, index))).toEqual([
    { number: 0 },
    { number: 2 },
    { gap: 7 },
    { number: 10 },
    { number: 11 },
    null,
  ]);
  expect(countRows([])).toBe(0);
});

test("lines have rows, and lines that were not kept have that of the next one", () => {
  expect([0, 2, 5, 10, 11, 99].map((line) => rowOf(ranges, line))).toEqual([0, 2, 4, 4, 5, 5]);
  expect([0, 3, 4, 9].map((index) => lineFrom(ranges, index))).toEqual([0, 10, 10, 0]);
});
