/** The view of the compare page, as the address holds it. */

import { type AxisName, readAxis } from "./axis-name";
import { defaultMediaGrid, type MediaGridView, readMediaGrid, writeMediaGrid } from "./media-grid";
import { type PanelSize, readSizes, writeSizes } from "./panel-size";
import {
  defaultDifferences,
  defaultSweep,
  defaultVerdict,
  type DifferencesView,
  readDifferences,
  readNumber,
  readSweep,
  readVerdict,
  type SweepView,
  type VerdictView,
  writeDifferences,
  writeSweep,
  writeVerdict,
} from "./compare-choices";

export const compareTabs = ["charts", "differences", "sweep", "verdict", "media"] as const;
export type CompareTab = (typeof compareTabs)[number];

export type Limits = [low: number | null, high: number | null];

export interface CompareView {
  search: string;
  /** Null: chosen by the page. */
  x: AxisName | null;
  /** Whether a metric that the training code gave another x axis is drawn on it, instead of on the step. */
  usesDefinedAxes: boolean;
  isLogX: boolean;
  isLogY: boolean;
  /** Whether a few values far away from all others are left outside the charts. */
  isClipped: boolean;
  /** The weight of a neighbouring point, 0 to 0.999; null chooses it by the number of points. */
  smoothing: number | null;
  /** The visible range of the x axis. */
  low: number | null;
  high: number | null;
  /** The fields to group runs by. */
  by: string[];
  /** Runs or groups that are not drawn, and if there are any, the only ones that are. */
  hidden: string[];
  only: string[];
  /** Metrics at the top, in this order. */
  pinned: string[];
  /** The visible range of values, by metric. */
  limits: Record<string, Limits>;
  /** The size of charts, by metric, if it is not the usual one. */
  sizes: Record<string, PanelSize>;
  differences: DifferencesView;
  sweep: SweepView;
  verdict: VerdictView;
  media: MediaGridView;
}

/** How the charts of a page are drawn and arranged, for one run and for many. */
export type Arrangement = Pick<
  CompareView,
  "usesDefinedAxes" | "isLogX" | "isLogY" | "isClipped" | "smoothing" | "pinned" | "limits" | "sizes"
>;
/** What a chart reads of it. */
export type PanelView = Omit<Arrangement, "usesDefinedAxes" | "pinned"> &
  Pick<CompareView, "low" | "high" | "hidden" | "only">;

export const defaultCompareView: CompareView = {
  search: "",
  x: null,
  usesDefinedAxes: true,
  isLogX: false,
  isLogY: false,
  isClipped: true,
  smoothing: null,
  low: null,
  high: null,
  by: [],
  hidden: [],
  only: [],
  pinned: [],
  limits: {},
  sizes: {},
  differences: defaultDifferences,
  sweep: defaultSweep,
  verdict: defaultVerdict,
  media: defaultMediaGrid,
};

const maxGroupFields = 3;

export function readArrangement(parameters: URLSearchParams): Arrangement {
  const smoothing = readNumber(parameters.get("smooth"));
  return {
    usesDefinedAxes: parameters.get("axes") !== "step",
    isLogX: parameters.get("logx") === "1",
    isLogY: parameters.get("log") === "1",
    isClipped: parameters.get("clip") !== "0",
    smoothing: smoothing === null ? null : Math.min(0.999, Math.max(0, smoothing)),
    pinned: unique(parameters.getAll("pin")),
    limits: readLimits(parameters.getAll("y")),
    sizes: readSizes(parameters.getAll("size")),
  };
}

export function writeArrangement(view: Arrangement, parameters: URLSearchParams): void {
  if (!view.usesDefinedAxes) parameters.set("axes", "step");
  if (view.isLogX) parameters.set("logx", "1");
  if (view.isLogY) parameters.set("log", "1");
  if (!view.isClipped) parameters.set("clip", "0");
  if (view.smoothing !== null) parameters.set("smooth", String(view.smoothing));
  for (const name of view.pinned) parameters.append("pin", name);
  for (const [name, [low, high]] of Object.entries(view.limits))
    parameters.append("y", `${low ?? ""},${high ?? ""},${name}`);
  for (const text of writeSizes(view.sizes)) parameters.append("size", text);
}

export function readCompareView(parameters: URLSearchParams): CompareView {
  return {
    ...readArrangement(parameters),
    search: parameters.get("q") ?? "",
    x: readAxis(parameters.get("x")),
    low: readNumber(parameters.get("low")),
    high: readNumber(parameters.get("high")),
    by: unique(parameters.getAll("by")).slice(0, maxGroupFields),
    hidden: unique(parameters.getAll("hide")),
    only: unique(parameters.getAll("only")),
    differences: readDifferences(parameters),
    sweep: readSweep(parameters),
    verdict: readVerdict(parameters),
    media: readMediaGrid(parameters),
  };
}

export function writeCompareView(view: CompareView, parameters: URLSearchParams): void {
  if (view.search) parameters.set("q", view.search);
  if (view.x !== null) parameters.set("x", view.x);
  if (view.low !== null) parameters.set("low", String(view.low));
  if (view.high !== null) parameters.set("high", String(view.high));
  for (const field of view.by) parameters.append("by", field);
  for (const id of view.hidden) parameters.append("hide", id);
  for (const id of view.only) parameters.append("only", id);
  writeArrangement(view, parameters);
  writeDifferences(view.differences, parameters);
  writeSweep(view.sweep, parameters);
  writeVerdict(view.verdict, parameters);
  writeMediaGrid(view.media, parameters);
}

/** The view for other runs: a brush is a part of an axis, whose ends depend on the runs. */
export const forOtherRuns = (view: CompareView): CompareView => ({ ...view, sweep: { ...view.sweep, brushes: {} } });

/** Limits are written as `LOW,HIGH,METRIC`, because the name of a metric may contain anything. */
function readLimits(texts: string[]): Record<string, Limits> {
  const found: Record<string, Limits> = {};
  for (const text of texts) {
    const [low = "", high = "", ...rest] = text.split(",");
    const limits: Limits = [readNumber(low), readNumber(high)];
    if (rest.length > 0 && (limits[0] !== null || limits[1] !== null)) found[rest.join(",")] = limits;
  }
  return found;
}

const unique = (names: string[]): string[] => [...new Set(names.filter(Boolean))];

/** Whether a run or a group is drawn. */
export const isShownIn = ({ hidden, only }: Pick<CompareView, "hidden" | "only">, id: string): boolean =>
  !hidden.includes(id) && (only.length === 0 || only.includes(id));

/** Show or hide a run or a group. */
export function toggleShown(view: CompareView, id: string): Pick<CompareView, "hidden" | "only"> {
  const isShown = isShownIn(view, id);
  if (view.only.length === 0)
    return { hidden: isShown ? [...view.hidden, id] : view.hidden.filter((other) => other !== id), only: [] };
  const only = isShown ? view.only.filter((other) => other !== id) : [...view.only, id];
  // Without the last one, all are shown again: a chart without lines helps nobody.
  return { hidden: [], only };
}

/** Move a pinned metric to the place of another one. */
export function movePin(pinned: string[], name: string, target: string): string[] {
  const to = pinned.indexOf(target);
  if (to < 0 || name === target || !pinned.includes(name)) return pinned;
  return pinned.filter((other) => other !== name).toSpliced(to, 0, name);
}

/** Move a pinned metric by one place. */
export function shiftPin(pinned: string[], name: string, by: -1 | 1): string[] {
  const target = pinned[pinned.indexOf(name) + by];
  return target === undefined ? pinned : movePin(pinned, name, target);
}
