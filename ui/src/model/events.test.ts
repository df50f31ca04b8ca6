import { expect, test } from "vitest";
import { eventDetail, eventTitle, eventTone, withKeys } from "./events";

test("records are described in one line", () => {
  const record = (event: string, more = {}) => ({ event, time: 1, ...more });
  expect(eventTitle(record("control_change", { name: "lr", old: 1, new: 2 }))).toBe("lr 1 → 2");
  expect(eventTitle(record("telemetry_error", { kind: "records_lost" }))).toBe("telemetry: records lost");
  expect(eventDetail(record("validation", { val_loss: 0.5, global_step: 3 }))).toBe("val_loss 0.5");
  expect(eventTone(record("error"))).toBe("bad");
  const twice = [record("a"), record("b"), record("b")];
  expect(withKeys(twice).map(([key]) => key)).toEqual(["1 a  0", "1 b  1", "1 b  0"]);
  expect(withKeys([record("new"), ...twice]).slice(1)).toEqual(withKeys(twice));
  expect(eventTone(record("end", { status: "failed" }))).toBe("bad");
  expect(eventTone(record("alert", { status: "resolved", severity: "critical" }))).toBe("good");
  expect(eventTitle(record("alert", { status: "opened", title: "Loss spike" }))).toBe("Loss spike");
  expect(eventTitle(record("alert", { status: "resolved", title: "Loss spike" }))).toBe("resolved: Loss spike");
});
