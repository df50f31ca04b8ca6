/** Groups metrics for the charts page. */

import type { MetricView } from "../api";

export interface Group {
  title: string;
  names: string[];
}

const training = [
  "train_loss",
  "window/latest_loss",
  "val_loss",
  "lr",
  "grad_norm",
  "samples_per_sec",
  "tokens_per_sec",
  "sec_per_step",
  "window/iteration_sec_mean",
  "window/samples_per_sec",
  "epoch",
];
const preferredMetric: Record<string, string> = {
  "window/latest_loss": "train_loss",
  "window/iteration_sec_mean": "sec_per_step",
  "window/samples_per_sec": "samples_per_sec",
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
];

/** Group metrics: common training metrics first, then by the prefix of their names. */
export function groupMetrics(metrics: MetricView[]): Group[] {
  const groups = new Map<string, string[]>();
  const known = new Set(metrics.map((metric) => metric.name));
  for (const metric of metrics) {
    const title = titleOf(metric, known);
    const names = groups.get(title);
    if (names) names.push(metric.name);
    else groups.set(title, [metric.name]);
  }
  for (const [title, names] of groups) names.sort(title === "training" ? byImportance : compareNatural);
  return [...groups]
    .map(([title, names]) => ({ title, names }))
    .sort((a, b) => rank(a.title) - rank(b.title) || compareNatural(a.title, b.title));
}

function titleOf({ name, kind }: MetricView, known: Set<string>): string {
  // A window's metric is a training metric only if the metric itself was not logged.
  const better = preferredMetric[name];
  if (training.includes(name) && !(better && known.has(better))) return "training";
  if (name.startsWith("window/")) return "windows";
  const slash = name.indexOf("/");
  if (slash > 0) return name.slice(0, slash);
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

function byImportance(a: string, b: string): number {
  const [first, second] = [training.indexOf(a), training.indexOf(b)];
  if (first >= 0 || second >= 0) return (first < 0 ? Infinity : first) - (second < 0 ? Infinity : second);
  return compareNatural(a, b);
}

const collator = new Intl.Collator("en", { numeric: true });
const compareNatural = (a: string, b: string): number => collator.compare(a, b);

/** Return the metrics whose names contain every word of a search, or match a `/regular expression/`. */
export function filterMetrics(metrics: MetricView[], search: string): MetricView[] {
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
