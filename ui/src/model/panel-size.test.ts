import { expect, test } from "vitest";
import { columnsIn, defaultSize, readSizes, resizeByKey, validSize, writeSizes } from "./panel-size";

test("a chart is resized within limits, and its size survives the address", () => {
  expect(resizeByKey(defaultSize, "ArrowRight")).toEqual({ columns: 2, heightPx: 270 });
  expect(resizeByKey({ columns: 3, heightPx: 900 }, "ArrowDown")).toEqual({ columns: 3, heightPx: 900 });
  expect(resizeByKey(defaultSize, "a")).toBeNull();
  expect(validSize({ columns: 9, heightPx: 1 })).toEqual({ columns: 3, heightPx: 180 });
  const sizes = { "a,b": { columns: 2, heightPx: 400 }, loss: { columns: 1, heightPx: 300 } };
  expect(readSizes(writeSizes(sizes))).toEqual(sizes);
  expect(readSizes(["nonsense", "2,300,", "-1,3,a"])).toEqual({});
  expect([columnsIn(390, 400, 12), columnsIn(812, 400, 12), columnsIn(811, 400, 12)]).toEqual([1, 2, 1]);
});
