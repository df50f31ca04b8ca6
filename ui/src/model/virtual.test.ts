import { expect, test } from "vitest";
import { edges, recycled, visibleColumns, visibleRows } from "./virtual";

test("visible rows are bounded, up to the last one", () => {
  expect(visibleRows(0, 400, 40, 10_000, 2)).toEqual({ first: 0, last: 12 });
  expect(visibleRows(40 * 5_000, 400, 40, 10_000, 2)).toEqual({ first: 4_998, last: 5_012 });
  expect(visibleRows(40 * 9_990, 400, 40, 10_000, 2)).toEqual({ first: 9_988, last: 10_000 });
  expect(visibleRows(90_000, 400, 40, 3, 2)).toEqual({ first: 1, last: 3 });
  expect(visibleRows(0, 400, 40, 0)).toEqual({ first: 0, last: 0 });
});

test("visible columns are bounded, up to the last one", () => {
  const positions = edges(Array.from({ length: 500 }, () => 100));
  expect(visibleColumns(positions, 0, 800)).toEqual({ first: 0, last: 10 });
  expect(visibleColumns(positions, 25_050, 25_850)).toEqual({ first: 249, last: 260 });
  expect(visibleColumns(positions, 49_200, 50_000)).toEqual({ first: 491, last: 500 });
  expect(visibleColumns(edges([]), 0, 800)).toEqual({ first: 0, last: 0 });
});

test("elements are used again for rows that come into view", () => {
  expect(recycled(0, 4, 10)).toEqual([0, 1, 2, 3]);
  expect(recycled(1, 4, 10)).toEqual([4, 1, 2, 3]);
  expect(recycled(6, 4, 10)).toEqual([8, 9, 6, 7]);
  expect(recycled(9, 4, 10)).toEqual([8, 9, 6, 7]);
  expect(recycled(2, 4, 3)).toEqual([0, 1, 2]);
  expect(recycled(0, 4, 0)).toEqual([]);
});
