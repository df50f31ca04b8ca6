import { expect, test } from "vitest";
import { fromSlider, toSlider } from "./slider";

test("slider positions round-trip and reach both ends", () => {
  const scales = [
    { min: 0, max: 1, isWhole: false },
    { min: 1e-6, max: 1e-2, isWhole: false },
    { min: 5, max: 2000, isWhole: true },
  ];
  for (const scale of scales) {
    expect([fromSlider(0, scale), fromSlider(1000, scale)]).toEqual([scale.min, scale.max]);
    for (const place of [1, 250, 999])
      expect(Math.abs(toSlider(fromSlider(place, scale), scale) - place)).toBeLessThan(3);
  }
  expect(toSlider(99, { min: 0, max: 1, isWhole: false })).toBe(1000);
  expect(toSlider(1, { min: 1, max: 1, isWhole: true })).toBe(0);
});

test("a wide range is logarithmic, and integers stay integers", () => {
  expect(fromSlider(500, { min: 1e-6, max: 1e-2, isWhole: false })).toBe(1e-4);
  expect(fromSlider(333, { min: 5, max: 2000, isWhole: true }) % 1).toBe(0);
  expect(fromSlider(500, { min: 0, max: 1, isWhole: false })).toBe(0.5);
});
