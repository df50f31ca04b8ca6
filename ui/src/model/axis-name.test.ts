import { expect, test } from "vitest";
import { axisQuery, isAscending, metricAxis, metricOf, readAxis } from "./axis-name";

test("an axis is one that every run has, or a metric of any name", () => {
  expect(readAxis("tokens")).toBe("tokens");
  expect([readAxis("nonsense"), readAxis("metric:"), readAxis(null)]).toEqual([null, null, null]);
  const odd = metricAxis("metric:val/a b");
  expect(metricOf(readAxis(odd) ?? "step")).toBe("metric:val/a b");
  expect(axisQuery(odd)).toEqual({ x: "step", x_metric: "metric:val/a b" });
  expect(axisQuery("time")).toEqual({ x: "time", x_metric: null });
  expect([isAscending([1, 1, 2]), isAscending([2, 1]), isAscending([])]).toEqual([true, false, true]);
});
