import { expect, test } from "vitest";
import { fitScale, positionScale, shareOf, ticksOf, valueAt } from "./scale";

test("a value and its place on a scale are inverse to each other", () => {
  for (const scale of [
    { low: -2, high: 6, isLog: false },
    { low: 1e-4, high: 100, isLog: true },
  ]) {
    expect(shareOf(scale, scale.low)).toBe(0);
    expect(shareOf(scale, scale.high)).toBe(1);
    expect(shareOf(scale, valueAt(scale, 0.3))).toBeCloseTo(0.3);
  }
  expect(shareOf({ low: 1, high: 10, isLog: true }, 0)).toBeNaN();
});

test("a scale has a length, also for one value or none", () => {
  for (const [low, high] of [
    [3, 3],
    [0, 0],
    [1e9, 1e9 + 1e-4],
    [5e-324, 5e-324],
    [Number.NaN, Number.NaN],
  ] as const) {
    for (const isLog of low > 0 ? [false, true] : [false]) {
      const scale = fitScale(low, high, isLog);
      expect(scale.high).toBeGreaterThan(scale.low);
    }
  }
});

test("positions are shown exactly, also times, which differ only in their last digits", () => {
  const noon = 1_767_614_400;
  expect(positionScale(noon, noon + 20, false)).toEqual({ low: noon, high: noon + 20, isLog: false });
  expect(positionScale(7, 7, false)).toEqual({ low: 6.5, high: 7.5, isLog: false });
  expect(positionScale(Number.NaN, Number.NaN, false)).toEqual({ low: 0, high: 1, isLog: false });
  expect(positionScale(5, 5, true).low).toBeGreaterThan(0);
});

test("ticks end, also where numbers are too far apart", () => {
  expect(ticksOf({ low: 1e17, high: 1e17 + 16, isLog: false }, 5).values.length).toBeLessThan(12);
  expect(ticksOf({ low: -1.7e308, high: 1.7e308, isLog: false }, 5).values).toEqual([]);
});

test("ticks are round, inside the scale and not too many", () => {
  expect(ticksOf({ low: 0, high: 10, isLog: false }, 5)).toEqual({ values: [0, 2, 4, 6, 8, 10], step: 2 });
  expect(ticksOf({ low: 0.1, high: 0.35, isLog: false }, 5).step).toBe(0.05);
  expect(ticksOf({ low: 0, high: 7200, isLog: false }, 5, true).step).toBe(1800);
  expect(ticksOf({ low: 1, high: 1e6, isLog: true }, 8).values).toEqual([1, 10, 100, 1e3, 1e4, 1e5, 1e6]);
  expect(ticksOf({ low: 1e-3, high: 1, isLog: true }, 12).values).toContain(0.02);
  expect(ticksOf({ low: 0.2, high: 45, isLog: true }, 5).values).toEqual([0.3, 1, 3, 10, 30]);
  expect(ticksOf({ low: 0.02, high: 4, isLog: true }, 2).values).toEqual([0.1, 1]);
  const narrow = ticksOf({ low: 2, high: 3, isLog: true }, 5); // less than a decade
  expect(narrow.values.length).toBeGreaterThan(3);
});
