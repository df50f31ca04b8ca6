import { expect, test } from "vitest";
import { positionLabels, valueLabel } from "./axis-labels";

test("y labels differ from their neighbours", () => {
  expect([0, 0.25, 0.5].map((value) => valueLabel(value, 0.25))).toEqual(["0.00", "0.25", "0.50"]);
  expect([5, 5.000001].map((value) => valueLabel(value, 1e-6))).toEqual(["5.000000", "5.000001"]);
  expect([0.0029999, 0.003].map((value) => valueLabel(value, 1e-7))).toEqual(["0.0029999", "0.0030000"]);
  const rates = [4e-4, 6e-4, 8e-4, 1e-3];
  expect(rates.map((value) => valueLabel(value, 2e-4))).toEqual(["0.0004", "0.0006", "0.0008", "0.0010"]);
  expect([0, 2e-5, 4e-5].map((value) => valueLabel(value, 2e-5))).toEqual(["0", "2e-5", "4e-5"]);
  expect(valueLabel(150_000, 50_000)).toBe("150\u202f000");
  expect(valueLabel(1e-5, 0)).toBe("1e-5");
  expect(valueLabel(2e6, 1e6)).toBe("2e6");
  expect(valueLabel(0, 1e300)).toBe("0");
});

test("step labels are short only if they stay exact", () => {
  expect(positionLabels([0, 200_000, 400_000], 200_000, "step")).toEqual(["0", "200k", "400k"]);
  expect(positionLabels([0, 10e6, 20e6], 10e6, "step")).toEqual(["0", "10M", "20M"]);
  const near = positionLabels([1_234_500, 1_234_520, 1_234_540], 20, "step");
  expect(new Set(near).size).toBe(3);
  expect(near[0]).toBe("1\u202f234\u202f500");
  expect(positionLabels([0, 0.5, 1], 0.5, "epoch")).toEqual(["0.0", "0.5", "1.0"]);
});

test("relative times use natural units", () => {
  expect(positionLabels([0, 60, 120], 60, "relative")).toEqual(["0 s", "1 min", "2 min"]);
});

test("a time of day has the date where a new day begins", () => {
  const noon = new Date(2026, 0, 5, 12).getTime() / 1000;
  expect(positionLabels([noon, noon + 3600, noon + 86_400], 3600, "time")).toEqual([
    "12:00\n2026-01-05",
    "13:00",
    "12:00\n2026-01-06",
  ]);
  expect(positionLabels([noon, noon + 10], 10, "time")[1]).toBe("12:00:10");
  expect(positionLabels([noon, noon + 0.5], 0.5, "time")[1]).toBe("12:00:00.500");
});
