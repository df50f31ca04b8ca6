/** Groups metrics for the charts page. */

import type { MetricFacts } from "../api";

/** A metric of one run, or of several runs. */
export interface MergedMetric extends MetricFacts {
  /** How many runs have it, if they are several. */
  numRuns?: number;
}

export interface Group {
  title: string;
  names: string[];
}

/** The signals that belong to the training metrics under any name, the most important first. */
const signals = ["reward", "loss", "adversarial_loss", "val_loss", "lr", "grad_norm", "throughput", "step_s"];
/** Metrics of windows that stand for a signal if the training code does not record it itself. */
const windowSignals: Record<string, string> = {
  "window/latest_loss": "loss",
  "window/samples_per_sec": "throughput",
  "window/iteration_sec_mean": "step_s",
};
const splits: Record<string, string> = {
  train: "training",
  training: "training",
  val: "validation",
  valid: "validation",
  validation: "validation",
  eval: "validation",
};
const order = [
  "training",
  "validation",
  "test",
  "windows",
  "profiling",
  "memory",
  "gpu",
  "cpu",
  "disk",
  "network",
  "system",
  "counters",
];

/** A metric that has less than this share of the runs of the most common one belongs to another script. */
const minShareOfRuns = 0.25;
/** So many metrics whose names begin with the same word and a dot, such as those of layers, are a group. */
const minDotted = 5;
const dottedPrefix = (name: string): string | undefined => /^([^./]+)\./.exec(name)?.[1];

/**
 * Group metrics: common training metrics first, then by the prefix of their names.
 *
 * Among runs of several scripts, the metrics that many of the runs have come first.
 */
export function groupMetrics(metrics: MergedMetric[]): Group[] {
  const groups = new Map<string, [name: string, importance: number][]>();
  const numDotted = new Map<string, number>();
  for (const { name } of metrics) {
    const prefix = dottedPrefix(name);
    if (prefix) numDotted.set(prefix, (numDotted.get(prefix) ?? 0) + 1);
  }
  const minRuns = minShareOfRuns * metrics.reduce((most, { numRuns = 1 }) => Math.max(most, numRuns), 1);
  const recorded = new Set(metrics.filter(({ name }) => !isOfWindow(name)).map((metric) => metric.signal));
  if (recorded.has("adversarial_loss")) recorded.add("loss");
  for (const metric of metrics) {
    const importance = importanceOf(metric, recorded);
    const prefix = dottedPrefix(metric.name);
    const isDotted = prefix !== undefined && (numDotted.get(prefix) ?? 0) >= minDotted;
    const title = importance < signals.length ? "training" : isDotted ? prefix : titleOf(metric);
    const isRare = (metric.numRuns ?? 1) < minRuns;
    const entry: [string, number] = [metric.name, importance + (isRare ? 2 * signals.length : 0)];
    const entries = groups.get(title);
    if (entries) entries.push(entry);
    else groups.set(title, [entry]);
  }
  return [...groups]
    .map(([title, entries]) => ({
      title,
      names: entries.sort(([a, first], [b, second]) => first - second || compareNatural(a, b)).map(([name]) => name),
    }))
    .sort((a, b) => rank(a.title) - rank(b.title) || compareNatural(a.title, b.title));
}

/** Groups about the machine or the loop rather than the training. */
const foldedGroups = ["windows", "memory", "gpu", "cpu", "disk", "network", "system", "counters"];
/** The step that a script passed to another tracker, recorded beside its values. */
const trackerStep = /^(wandb|tensorboard|mlflow|trackio|swanlab|output)_step$/;

/** Whether the group at an index is open until the user folds it: the first one, and others while there is room. */
export function isOpenAtFirst(groups: Group[], index: number, maxPanels: number): boolean {
  const group = groups[index];
  if (index === 0 || group === undefined) return index === 0;
  const numPanels = groups.slice(0, index + 1).reduce((sum, { names }) => sum + names.length, 0);
  return !foldedGroups.includes(group.title) && numPanels <= maxPanels;
}

/** Whether a metric gets a chart of its own: it does not repeat another one. */
export const isShown = ({ same_as }: MetricFacts): boolean => same_as === null;

/**
 * The metrics of several runs. One that repeats another one in some runs only is shown; so are axes that differ. A metric
 * was read from the output if any run has it from there.
 */
export function mergeMetrics(pages: MetricFacts[][]): MergedMetric[] {
  const byName = new Map<string, MergedMetric>();
  for (const metric of pages.flat()) {
    const { same_as, x_metric, is_printed, numRuns = 0 } = byName.get(metric.name) ?? (metric as MergedMetric);
    byName.set(metric.name, {
      ...metric,
      numRuns: numRuns + 1,
      same_as: same_as && metric.same_as,
      x_metric: x_metric === metric.x_metric ? x_metric : null,
      is_printed: is_printed || metric.is_printed,
    });
  }
  return [...byName.values()];
}

const isOfWindow = (name: string): boolean => name.startsWith("window/");

/** The place of a metric among the training metrics; past the last signal if it is none of them. */
function importanceOf({ name, signal }: MetricFacts, recorded: Set<string | null>): number {
  if (isOfWindow(name)) {
    const stand = windowSignals[name];
    return stand && !recorded.has(stand) ? signals.indexOf(stand) : signals.length;
  }
  const index = signal === null ? -1 : signals.indexOf(signal);
  if (index >= 0) return index;
  return name === "epoch" ? signals.length + 1 : signals.length;
}

function titleOf({ name, kind }: MetricFacts): string {
  if (isOfWindow(name)) return "windows";
  if (trackerStep.test(name)) return "counters";
  const plugin = /^plugin\/([^/]+)\//.exec(name)?.[1];
  if (plugin) return `plugin ${plugin}`;
  const slash = name.indexOf("/");
  if (slash > 0) return splits[name.slice(0, slash)] ?? name.slice(0, slash);
  if (/^(gpu_mem|cpu_mem)/.test(name)) return "memory";
  if (kind === "system") return /^(gpu|cpu|disk|net)/.exec(name)?.[0].replace("net", "network") ?? "system";
  if (kind === "validation" || name.startsWith("val_")) return "validation";
  if (kind === "test" || name.startsWith("test_")) return "test";
  return "training";
}

function rank(title: string): number {
  const index = order.indexOf(title);
  if (index < 0) return 3; // groups of the user come after training metrics and before system metrics
  return index < 3 ? index : index + 4;
}

const collator = new Intl.Collator("en", { numeric: true });
const compareNatural = (a: string, b: string): number => collator.compare(a, b);

/** The metrics with a chart: those that a search finds, or without one, those that do not repeat others. */
export const chartedMetrics = (metrics: MergedMetric[], search: string): MergedMetric[] =>
  search === "" ? metrics.filter(isShown) : filterMetrics(metrics, search);

/** Return the metrics whose names contain every word of a search, or match a `/regular expression/`. */
export function filterMetrics<Named extends { name: string }>(metrics: Named[], search: string): Named[] {
  const pattern = parseExpression(search);
  if (pattern !== null) {
    const expression = compileExpression(pattern);
    return expression ? metrics.filter((metric) => expression.test(metric.name)) : [];
  }
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return metrics.filter((metric) => words.every((word) => metric.name.toLowerCase().includes(word)));
}

/** Whether a search is an invalid regular expression. */
export function isInvalidExpression(search: string): boolean {
  const pattern = parseExpression(search);
  return pattern !== null && compileExpression(pattern) === null;
}

const parseExpression = (search: string): string | null => /^\/(.+)\/$/.exec(search.trim())?.[1] ?? null;

function compileExpression(pattern: string): RegExp | null {
  try {
    return new RegExp(pattern, "i");
  } catch {
    return null;
  }
}

/** Whether a metric follows a schedule instead of being measured. */
export function isSchedule(name: string): boolean {
  return /(^|[/_])(lr|learning_rate|epoch|scale)$/.test(name);
}
