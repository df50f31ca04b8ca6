/** The panels that someone adds to the workspace: how values of the drawn runs depend on each other. */

import type { FieldView, Json } from "../api";
import { quantity } from "./format";
import type { Member } from "./overlay";
import { fitScale, type Scale, shareOf } from "./scale";
import { fieldParts, isMetric, resultField } from "./table-view";

export const panelKinds = ["line", "scatter", "bar", "parallel"] as const;
export type PanelKind = (typeof panelKinds)[number];

export interface AddedPanel {
  kind: PanelKind;
  /**
   * Of a line chart, its metric and the x axis, which is that of the page if it is empty. Of others, fields of runs: x and
   * y of a scatter plot, the length of bars, and the axes of parallel coordinates.
   */
  fields: string[];
  isLogX: boolean;
  isLogY: boolean;
}

const maxAxes = 12;
const numFields: Record<PanelKind, [least: number, most: number]> = {
  line: [2, 2],
  scatter: [2, 2],
  bar: [1, 1],
  parallel: [2, maxAxes],
};

/** Why a panel cannot be drawn; empty if it can. */
export function panelProblem({ kind, fields }: AddedPanel): string {
  const [least, most] = numFields[kind];
  const isEmpty = kind === "line" ? !fields[0] : fields.some((field) => !field);
  if (isEmpty || fields.length < least) return kind === "parallel" ? "Choose at least two fields." : "Choose a field.";
  return fields.length > most ? `Choose at most ${most} fields.` : "";
}

/** A panel as a parameter of the address: `KIND,LOG,FIELD,…`, where LOG has the logarithmic axes. */
export function writePanel({ kind, fields, isLogX, isLogY }: AddedPanel): string {
  const escaped = fields.map((field) => field.replace(/[%,]/g, encodeURIComponent));
  return [kind, `${isLogX ? "x" : ""}${isLogY ? "y" : ""}`, ...escaped].join(",");
}

export function readPanels(texts: string[]): AddedPanel[] {
  const found = new Map<string, AddedPanel>();
  for (const text of texts) {
    const [kindText, log = "", ...rest] = text.split(",");
    const kind = panelKinds.find((each) => each === kindText);
    if (!kind) continue;
    const panel = { kind, fields: rest.map(unescape), isLogX: log.includes("x"), isLogY: log.includes("y") };
    if (panelProblem(panel) === "") found.set(panelKey(panel), panel);
  }
  return [...found.values()];
}

function unescape(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand
  }
}

/** The name of a panel among the charts, for its size and the cursor; the same one with other scales. */
export const panelKey = (panel: AddedPanel): string =>
  `panel ${writePanel({ ...panel, isLogX: false, isLogY: false })}`;

/** A field as people say it: `val_loss`, not `val_loss.last`. */
export const fieldTitle = (field: string): string =>
  fieldParts(field).aggregate === "last" ? fieldParts(field).name : field;

export function panelTitle({ kind, fields }: AddedPanel): string {
  const [first = "", second = ""] = fields.map(fieldTitle);
  if (kind === "scatter") return `${second} against ${first}`;
  return kind === "parallel" ? fields.map(fieldTitle).join(", ") : first;
}

/** Put a panel in the place of another one, or at the end. */
export function withPanel(panels: AddedPanel[], panel: AddedPanel, replaced?: AddedPanel): AddedPanel[] {
  const key = panelKey(panel);
  const at = replaced ? panels.findIndex((each) => panelKey(each) === panelKey(replaced)) : panels.length;
  const next = replaced ? panels.with(at, panel) : [...panels, panel];
  return next.filter((each, index) => index === at || panelKey(each) !== key);
}

export function movePanel(panels: AddedPanel[], panel: AddedPanel, by: -1 | 1): AddedPanel[] {
  const at = panels.indexOf(panel);
  const other = panels[at + by];
  return at < 0 || other === undefined ? panels : panels.with(at, other).with(at + by, panel);
}

// What can be chosen

export interface FieldChoices {
  results: string[];
  config: string[];
  metrics: string[];
}

const numberKinds = ["number", "duration", "share", "bytes", "time"];

/** The fields of runs that a panel can show: facts that are numbers, config keys that vary first, and metrics. */
export function fieldChoices(fields: FieldView[]): FieldChoices {
  const config = fields.filter(({ field }) => field.startsWith("config."));
  const facts = fields.filter(({ field, kind }) => !field.includes(".") && numberKinds.includes(kind));
  const result = resultField(fields);
  return {
    results: [result, ...facts.map(({ field }) => field).filter((field) => field !== result && !isMetric(field))],
    config: [...config.filter(({ varies }) => varies), ...config.filter(({ varies }) => !varies)].map(
      ({ field }) => field,
    ),
    metrics: fields.flatMap(({ field }) => (isMetric(field) ? fieldParts(field).name : [])),
  };
}

const maxSuggestedAxes = 6;

/** What a new panel shows until someone chooses: the result, and the config keys that vary and are no seeds, names or paths. */
export function suggestPanel(kind: PanelKind, fields: FieldView[], metrics: string[]): AddedPanel {
  const result = resultField(fields);
  const varied = fields
    .filter(({ field, varies, is_label }) => field.startsWith("config.") && varies && !is_label)
    .sort((a, b) => b.num_runs - a.num_runs || Number(a.kind === "text") - Number(b.kind === "text"))
    .map(({ field }) => field);
  const chosen: Record<PanelKind, string[]> = {
    line: [metrics[0] ?? "", ""],
    scatter: [varied[0] ?? "duration", result],
    bar: [result],
    parallel: [...varied.slice(0, maxSuggestedAxes), result],
  };
  return { kind, fields: chosen[kind], isLogX: false, isLogY: false };
}

// What is not drawn

/** Whether a panel shows a run; `low`: a logarithmic axis has no place for values of 0 and below. */
export type Placement = "shown" | "missing" | "low";

/** How many runs a panel leaves out, such as `3 runs without val_loss`, and their names. */
export function missingRuns(
  fields: string[],
  placeOf: (field: string, run: number) => Placement,
  runs: string[],
): { text: string; names: string[] } | null {
  const parts: string[] = [];
  const names = new Set<string>();
  for (const field of fields) {
    for (const [place, text] of [
      ["missing", `without ${fieldTitle(field)}`],
      ["low", `with ${fieldTitle(field)} ≤ 0`],
    ]) {
      const left = runs.filter((_, run) => placeOf(field, run) === place);
      if (left.length) parts.push(`${quantity(left.length, "run")} ${text}`);
      for (const run of left) names.add(run);
    }
  }
  return parts.length ? { text: parts.join(", "), names: [...names] } : null;
}

// Bars

export interface Bar {
  member: Member;
  /** The value of the run, or the mean of the runs of the group. */
  value: number;
  /** The standard deviation of the runs of a group; null of fewer than two. */
  spread: number | null;
  values: number[];
}

/** The bars of runs and groups that have a number, the best or the highest first. */
export function barsOf(members: Member[], valueOf: (run: string) => Json, direction: number): Bar[] {
  const bars = members.flatMap((member): Bar[] => {
    const values = member.runs.map(valueOf).filter((value) => typeof value === "number");
    if (values.length === 0) return [];
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    return [
      { member, value: mean, spread: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null, values },
    ];
  });
  return bars.sort((a, b) => (direction < 0 ? a.value - b.value : b.value - a.value));
}

/** The scale of bars: from zero, or on a logarithmic one from below the lowest value. Null if nothing can be shown. */
export function barScale(bars: Bar[], isLog: boolean): Scale | null {
  const ends = bars.flatMap(({ value, spread, values }) => [
    value,
    value - (spread ?? 0),
    value + (spread ?? 0),
    ...values,
  ]);
  if (!isLog) return ends.length ? fitScale(Math.min(0, ...ends), Math.max(0, ...ends), false) : null;
  const positive = ends.filter((value) => value > 0);
  if (positive.length === 0) return null;
  return fitScale(Math.min(...positive) / 2, Math.max(...positive), true);
}

/** The part of the scale that a bar covers. */
export function barPart(scale: Scale, value: number): { from: number; to: number } {
  const base = scale.isLog ? 0 : shareOf(scale, 0);
  const at = shareOf(scale, value);
  return Number.isNaN(at) ? { from: 0, to: 0 } : { from: Math.min(base, at), to: Math.max(base, at) };
}
