/** Media of several runs side by side: what the address holds, and which step of each run is shown. */

import type { MediaNameView } from "../api";
import { readNumber } from "./compare-choices";
import { indexAt, type MediaItem, promptsOf } from "./media";

/**
 * How the step of each run is chosen: exactly the chosen one, the nearest one that the run has, or the one at which a
 * metric was best.
 */
export const stepRules = ["same", "nearest", "best"] as const;
export type StepRule = (typeof stepRules)[number];
/** Only the first runs have a column. */
export const maxMediaRuns = 24;
export const zooms = ["fit", "1", "2", "4", "8", "16"];

export interface MediaGridView {
  /** Empty: the first name. */
  name: string;
  /** Null: the latest one. */
  step: number | null;
  rule: StepRule;
  /** The metric of the rule `best`. */
  metric: string;
  zoom: string;
  /** The run that logged tables are compared with; empty for none. */
  against: string;
  /** The picture in the viewer. */
  opened: { run: string; prompt: string } | null;
}

export const defaultMediaGrid: MediaGridView = {
  name: "",
  step: null,
  rule: "nearest",
  metric: "",
  zoom: "fit",
  against: "",
  opened: null,
};

export const readZoom = (text: string | null): string => zooms.find((each) => each === text) ?? "fit";

export function readMediaGrid(parameters: URLSearchParams): MediaGridView {
  const [run, prompt] = [parameters.get("of"), parameters.get("prompt")];
  return {
    name: parameters.get("media") ?? "",
    step: readNumber(parameters.get("step")),
    rule: stepRules.find((each) => each === parameters.get("at")) ?? defaultMediaGrid.rule,
    metric: parameters.get("metric") ?? "",
    zoom: readZoom(parameters.get("zoom")),
    against: parameters.get("against") ?? "",
    opened: run && prompt !== null ? { run, prompt } : null,
  };
}

export function writeMediaGrid(view: MediaGridView, parameters: URLSearchParams): void {
  if (view.name) parameters.set("media", view.name);
  if (view.step !== null) parameters.set("step", String(view.step));
  if (view.rule !== defaultMediaGrid.rule) parameters.set("at", view.rule);
  if (view.metric) parameters.set("metric", view.metric);
  if (view.zoom !== defaultMediaGrid.zoom) parameters.set("zoom", view.zoom);
  if (view.against) parameters.set("against", view.against);
  if (view.opened) {
    parameters.set("of", view.opened.run);
    parameters.set("prompt", view.opened.prompt);
  }
}

/** The step nearest to another one; of two at the same distance the earlier one. Null without steps. */
export function nearestStep(steps: number[], step: number): number | null {
  const index = indexAt(steps, step);
  const [before, after] = [steps[index], steps[index + 1]];
  if (before === undefined || after === undefined) return before ?? after ?? null;
  return step - before <= after - step ? before : after;
}

/** The step of a run that a rule chooses; null leaves a gap. */
export function chooseStep(rule: StepRule, steps: number[], step: number, bestStep: number | null): number | null {
  if (rule === "best") return bestStep;
  if (rule === "nearest") return nearestStep(steps, step);
  return steps[indexAt(steps, step)] === step ? step : null;
}

export interface MediaRow {
  prompt: string;
  /** The caption, if all runs have the same one. */
  caption: string;
  /** An item per run, in their order; null leaves a gap. */
  items: (MediaItem | null)[];
}

/** A row for each prompt of any run. */
export function mediaRows(itemsOfRuns: MediaItem[][]): MediaRow[] {
  const byPrompt = itemsOfRuns.map((items) => new Map(items.map((item) => [item.promptId, item])));
  return promptsOf(itemsOfRuns.flat()).map((prompt) => {
    const items = byPrompt.map((run) => run.get(prompt) ?? null);
    const captions = new Set(items.flatMap((item) => (item ? [item.caption] : [])));
    return { prompt, caption: captions.size === 1 ? ([...captions][0] ?? "") : "", items };
  });
}

/** The names that any run has, each with its kind, those that most runs have first. */
export function namesOfRuns(pages: Iterable<MediaNameView[]>): { name: string; kind: string; numRuns: number }[] {
  const names = new Map<string, { name: string; kind: string; numRuns: number }>();
  for (const page of pages) {
    for (const { name, kind } of page) {
      const entry = names.get(name) ?? { name, kind, numRuns: 0 };
      names.set(name, { ...entry, numRuns: entry.numRuns + 1 });
    }
  }
  return [...names.values()].sort((a, b) => b.numRuns - a.numRuns);
}
