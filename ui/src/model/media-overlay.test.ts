import { expect, test } from "vitest";
import type { Box, Mask } from "./media";
import { maskColours, overlayClasses } from "./media-overlay";

const box = (label: string, score: number | null = null): Box => ({ x: 0, y: 0, width: 1, height: 1, label, score });
const mask = (labels: Record<string, string>): Mask => ({ sha256: "a".repeat(64), ext: "png", name: "m", labels });

test("classes of boxes and masks are counted and have colours of their own", () => {
  const boxes = [box("fox", 0.9), box("fox", 0.2), box("tree"), box("house")];
  const classes = overlayClasses([mask({ 0: "nothing", 1: "fox", 13: "sky" })], boxes, 0.5);
  expect(classes.map(({ name, numBoxes, isInMask }) => [name, numBoxes, isInMask])).toEqual([
    ["fox", 1, true],
    ["house", 1, false],
    ["sky", 0, true],
    ["tree", 1, false],
  ]);
  expect(classes.find(({ name }) => name === "fox")?.colour).toBe(1);
  expect(classes.find(({ name }) => name === "sky")?.colour).toBe(2); // 13 is 1 again, which is taken
  expect(new Set(classes.map(({ colour }) => colour)).size).toBe(4);
});

test("the colour of a class does not depend on the order of the boxes", () => {
  const colours = (labels: string[]) =>
    Object.fromEntries(
      overlayClasses(
        [],
        labels.map((label) => box(label)),
        0,
      ).map((each) => [each.name, each.colour]),
    );
  expect(colours(["b", "a"])).toEqual(colours(["a", "b", "a"]));
  expect(colours(["b"])["b"]).toBe(colours(["a", "b"])["b"]);
  expect(
    overlayClasses(
      [],
      Array.from({ length: 30 }, (_, index) => box(`c${index}`)),
      0,
    ),
  ).toHaveLength(30);
});

test("hidden classes of a mask are not drawn", () => {
  const pixels = mask({ 1: "fox", 2: "sky" });
  const classes = overlayClasses([pixels], [], 0);
  expect(maskColours(pixels, classes, new Set()).slice(0, 4)).toEqual([null, 1, 2, 3]);
  expect(maskColours(pixels, classes, new Set(["fox", "other"])).slice(0, 4)).toEqual([null, null, 2, 3]);
  expect(maskColours(mask({}), [], new Set())[14]).toBe(2);
});
