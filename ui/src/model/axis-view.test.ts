import { expect, test } from "vitest";
import { extended, wholeAxis, zoomed } from "./axis-view";

test("an axis shows all points until the user zooms", () => {
  expect(wholeAxis.range).toEqual([null, null]);
  const view = extended(extended(wholeAxis, 2, 5), 1, 3);
  expect(view.range).toEqual([1, 5]);
  expect(extended(view, 2, 3)).toBe(view);
  const part = zoomed(view, 2, 4);
  expect(part.range).toEqual([2, 4]);
  expect(extended(part, 0, 9).range, "the same array: nothing is drawn again").toBe(part.range);
  expect(zoomed(part, null, null).range).toEqual([1, 5]);
  expect(zoomed(part, 0, 9), "a part with all points").toMatchObject({ low: null, high: null, range: [1, 5] });
});
