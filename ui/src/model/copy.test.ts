import { expect, test } from "vitest";
import type { CopyView } from "../api";
import { copyNotes, lastHeard } from "./copy";

const copy: CopyView = { seen: 1_000, lag_bytes: 0, skew_s: 0.2 };

test("a run that was recorded here has no notes", () => {
  expect(lastHeard(null, "running", 1_000)).toBeNull();
  expect(copyNotes(null, "running", 9_000)).toEqual([]);
});

test("a copy that is up to date only says when it was heard", () => {
  expect(lastHeard(copy, "running", 1_003.4)).toBe("3 s ago");
  expect(copyNotes(copy, "running", 1_009)).toEqual([]);
});

test("a server's clock that is behind that of the page does not matter", () => {
  expect(lastHeard(copy, "running", 998)).toBe("0 s ago");
});

test("silence is noted while the run should be heard", () => {
  expect(copyNotes(copy, "running", 1_040)).toEqual(["Nothing heard for 40 s."]);
  expect(copyNotes(copy, "stale", 1_090)).toEqual(["Nothing heard for 1 min 30 s."]);
  expect(copyNotes(copy, "finished", 9_000)).toEqual([]);
  expect(lastHeard(copy, "finished", 9_000)).toBeNull();
});

test("missing bytes are noted unless they are on their way", () => {
  expect(copyNotes({ ...copy, lag_bytes: 2_300_000 }, "running", 1_001)).toEqual(["2.3 MB not received yet."]);
  expect(copyNotes({ ...copy, lag_bytes: 500 }, "running", 1_001)).toEqual([]);
  expect(copyNotes({ ...copy, lag_bytes: 500 }, "running", 1_020)).toEqual([
    "Nothing heard for 20 s.",
    "500 B not received yet.",
  ]);
  expect(copyNotes({ ...copy, lag_bytes: 500 }, "finished", 9_000)).toEqual(["500 B not received yet."]);
});

test("a wrong clock is noted", () => {
  expect(copyNotes({ ...copy, skew_s: 12.2 }, "finished", 9_000)).toEqual([
    "The clock of this machine is 12 s ahead of the server's.",
  ]);
  expect(copyNotes({ ...copy, skew_s: -3_600 }, "running", 1_000)).toEqual([
    "The clock of this machine is 1 h 00 min behind the server's.",
  ]);
  expect(copyNotes({ ...copy, skew_s: 2 }, "running", 1_000)).toEqual([]);
  expect(copyNotes({ ...copy, skew_s: null }, "running", 1_000)).toEqual([]);
});
