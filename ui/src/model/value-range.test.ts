import { expect, test } from "vitest";
import type { Points } from "./series";
import { rangeWithoutOutliers } from "./value-range";

const line = (y: (number | null)[]): Points => ({ x: y.map((_, index) => index), y });
const noise = (index: number): number => 1 + 0.1 * Math.sin(index * 7);
const points = (count: number, at: (index: number) => number | null = noise): (number | null)[] =>
  Array.from({ length: count }, (_, index) => at(index));

test("a single outlier is left outside and counted", () => {
  const found = rangeWithoutOutliers([line(points(300).with(150, 1e6))]);
  expect(found?.numOutside).toBe(1);
  expect(found?.high).toBeLessThan(1.2);
  expect(found?.low).toBeCloseTo(0.9, 2);
  expect(rangeWithoutOutliers([line(points(300).with(150, -1e6))])?.low).toBeGreaterThan(0.8);
});

test("the steep beginning of a loss is part of the curve", () => {
  expect(rangeWithoutOutliers([line(points(300, (index) => 10 / (1 + index)))])).toBeNull();
  expect(rangeWithoutOutliers([line(points(1000).with(0, 50))])).toBeNull();
});

test("a spike is an outlier although the beginning is higher than the rest", () => {
  const falling = points(300, (index) => 0.7 * Math.exp(-index / 40) + 0.001);
  expect(rangeWithoutOutliers([line(falling.with(200, 9))])).toMatchObject({ numOutside: 1, high: 0.701 });
});

test("a level, a longer excursion and few points are shown whole", () => {
  expect(rangeWithoutOutliers([line(points(300))])).toBeNull();
  expect(
    rangeWithoutOutliers([line(points(1000, (index) => (index > 495 && index < 505 ? 90 : noise(index))))]),
  ).toBeNull();
  expect(rangeWithoutOutliers([line(points(10).with(5, 1e6))])).toBeNull();
  expect(rangeWithoutOutliers([line(points(100, () => 3).with(5, 4))])).toBeNull();
});
