import { expect, test } from "vitest";
import type { FieldView } from "../api";
import {
  type AddedPanel,
  barPart,
  barScale,
  barsOf,
  fieldChoices,
  missingRuns,
  movePanel,
  panelProblem,
  panelTitle,
  readPanels,
  suggestPanel,
  withPanel,
  writePanel,
} from "./workspace-panels";

const panel = (kind: AddedPanel["kind"], fields: string[], log = ""): AddedPanel => ({
  kind,
  fields,
  isLogX: log.includes("x"),
  isLogY: log.includes("y"),
});
const field = (name: string, change: Partial<FieldView> = {}): FieldView => ({
  field: name,
  kind: "number",
  num_runs: 9,
  differs: true,
  varies: true,
  is_label: false,
  values: [],
  ...change,
});

test("a panel is the same after it was in an address, whatever its fields are called", () => {
  const panels = [
    panel("scatter", ["config.lr", "val/loss, 100 % of it.last"], "x"),
    panel("bar", ["result"], "xy"),
    panel("parallel", ["config.a", "config.b", "result"]),
    panel("line", ["train_loss", ""]),
    panel("line", ["train_loss", "metric:tokens"], "y"),
  ];
  expect(readPanels(panels.map(writePanel))).toEqual(panels);
  expect(writePanel(panel("scatter", ["config.lr", "result"], "x"))).toBe("scatter,x,config.lr,result");
});

test("addresses with mistakes leave panels out, and equal ones are one", () => {
  const texts = ["pie,,result", "scatter,,config.lr", "bar,,", "bar,,a%zz", "bar,,result", "bar,y,result", ""];
  expect(readPanels(texts)).toEqual([panel("bar", ["a%zz"]), panel("bar", ["result"], "y")]);
  expect(panelProblem(panel("parallel", ["result"]))).not.toBe("");
});

test("panels are replaced in their place and moved", () => {
  const [a, b, c] = [panel("bar", ["a"]), panel("bar", ["b"]), panel("bar", ["c"])];
  expect(withPanel([a, b], c)).toEqual([a, b, c]);
  expect(withPanel([a, b], c, a)).toEqual([c, b]);
  expect(withPanel([a, b], b, a)).toEqual([b]);
  expect(withPanel([a, b], panel("bar", ["b"], "y"))).toEqual([a, panel("bar", ["b"], "y")]);
  expect(movePanel([a, b, c], b, 1)).toEqual([a, c, b]);
  expect(movePanel([a, b], a, -1)).toEqual([a, b]);
});

test("new panels show the result and the config keys that vary, without labels", () => {
  const fields = [
    field("result"),
    field("duration", { kind: "duration" }),
    field("name", { kind: "text" }),
    field("config.seed", { is_label: true }),
    field("config.out_dir", { kind: "text", is_label: true }),
    field("config.width", { varies: false }),
    field("config.lr"),
    field("val_loss.last"),
  ];
  expect(suggestPanel("scatter", fields, []).fields).toEqual(["config.lr", "result"]);
  expect(suggestPanel("parallel", fields, []).fields).toEqual(["config.lr", "result"]);
  expect(suggestPanel("line", fields, ["val_loss"]).fields).toEqual(["val_loss", ""]);
  expect(fieldChoices(fields)).toEqual({
    results: ["result", "duration"],
    config: ["config.seed", "config.out_dir", "config.lr", "config.width"],
    metrics: ["val_loss"],
  });
  expect(panelTitle(panel("scatter", ["config.lr", "val_loss.last"]))).toBe("val_loss against config.lr");
});

test("runs without a value are counted and named", () => {
  const placeOf = (name: string, run: number) => (name === "a" ? "shown" : run > 1 ? "low" : "missing");
  expect(missingRuns(["a", "b.last"], placeOf, ["x", "y", "z"])).toEqual({
    text: "2 runs without b, 1 run with b ≤ 0",
    names: ["x", "y", "z"],
  });
  expect(missingRuns(["a"], placeOf, ["x"])).toBeNull();
});

test("bars are sorted by what is better; groups have a mean and a spread", () => {
  const values: Record<string, number | null> = { a: 1, b: 3, c: null, d: 10 };
  const member = (id: string, runs: string[]) => ({ id, label: id, runs, isGroup: runs.length > 1, colour: "red" });
  const members = [member("d", ["d"]), member("c", ["c"]), member("ab", ["a", "b", "c"])];
  const bars = barsOf(members, (run) => values[run] ?? null, -1);
  expect(bars.map(({ member, value, spread }) => [member.id, value, spread])).toEqual([
    ["ab", 2, Math.SQRT2],
    ["d", 10, null],
  ]);
  const scale = barScale(bars, false);
  expect(scale).toMatchObject({ low: 0, high: 10 });
  expect(scale && barPart(scale, 5)).toEqual({ from: 0, to: 0.5 });
  expect(
    barScale(
      barsOf(members, () => -1, 1),
      true,
    ),
  ).toBeNull();
});
