import { expect, test } from "vitest";
import { helpAddress } from "./help";
import { parse } from "./route";

test("each page of the dashboard links to what explains it", () => {
  expect(helpAddress(parse("#/"))).toBe("help/dashboard");
  expect(helpAddress(parse("#/table"))).toBe("help/runs");
  expect(helpAddress(parse("#/run/a/health"))).toBe("help/diagnosis");
  expect(helpAddress(parse("#/compare/charts?run=a"))).toBe("help/comparing");
  expect(helpAddress(parse("#/run/a"))).toBe("help/dashboard");
});
