import { expect, test } from "vitest";
import type { MediaItem } from "./media";
import { chooseStep, mediaRows, namesOfRuns, nearestStep, readMediaGrid, writeMediaGrid } from "./media-grid";

test("each rule chooses the step of a run", () => {
  const steps = [0, 100, 200, 400];
  expect([90, 100, 150, 160, 300, 301, 1000, -5].map((step) => nearestStep(steps, step))).toEqual([
    100, 100, 100, 200, 200, 400, 400, 0,
  ]);
  expect(nearestStep([], 5)).toBeNull();
  expect(chooseStep("same", steps, 100, 0)).toBe(100);
  expect(chooseStep("same", steps, 101, 0)).toBeNull();
  expect(chooseStep("nearest", steps, 101, 0)).toBe(100);
  expect(chooseStep("best", steps, 101, 400)).toBe(400);
  expect(chooseStep("best", steps, 101, null)).toBeNull();
});

test("a run without a prompt leaves a gap in its column", () => {
  const item = (promptId: string, index: number, caption: string): MediaItem =>
    ({ promptId, index, caption }) as unknown as MediaItem;
  const [fox, house, vixen] = [item("fox", 0, "a fox"), item("house", 1, "a house"), item("fox", 0, "a vixen")];
  expect(mediaRows([[fox, house], [], [vixen]])).toEqual([
    { prompt: "fox", caption: "", items: [fox, null, vixen] },
    { prompt: "house", caption: "a house", items: [house, null, null] },
  ]);
});

test("names that most runs have come first", () => {
  const page = (...names: string[]) => names.map((name) => ({ name, kind: "image" }) as never);
  expect(namesOfRuns([page("a", "b"), page("b")]).map(({ name, numRuns }) => [name, numRuns])).toEqual([
    ["b", 2],
    ["a", 1],
  ]);
});

test("invalid parameters of the grid fall back to defaults", () => {
  const view = readMediaGrid(new URLSearchParams("at=never&zoom=3&step=x&of=a"));
  expect(view).toMatchObject({ rule: "nearest", zoom: "fit", step: null, opened: null });
  const parameters = new URLSearchParams();
  writeMediaGrid(view, parameters);
  expect(parameters.toString()).toBe("");
});
