/** Which charts stand together, and in which order. */

import type { Metric } from "../api";

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
const standsFor: Record<string, string> = {
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

/** Put metrics into groups: the usual ones first, then by what their names begin with. */
export function group(metrics: Metric[]): Group[] {
  const groups = new Map<string, string[]>();
  const known = new Set(metrics.map((metric) => metric.name));
  for (const metric of metrics) {
    const title = titleOf(metric, known);
    const names = groups.get(title);
    if (names) names.push(metric.name);
    else groups.set(title, [metric.name]);
  }
  for (const [title, names] of groups) names.sort(title === "training" ? byImportance : naturally);
  return [...groups]
    .map(([title, names]) => ({ title, names }))
    .sort((a, b) => rank(a.title) - rank(b.title) || naturally(a.title, b.title));
}

function titleOf({ name, kind }: Metric, known: Set<string>): string {
  // What is known of windows of iterations is shown first only where nothing better was logged.
  const better = standsFor[name];
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
  const place = order.indexOf(title);
  if (place < 0) return 3; // what users group themselves stands between what they train and what the machine does
  return place < 3 ? place : place + 4;
}

function byImportance(a: string, b: string): number {
  const [first, second] = [training.indexOf(a), training.indexOf(b)];
  if (first >= 0 || second >= 0) return (first < 0 ? Infinity : first) - (second < 0 ? Infinity : second);
  return naturally(a, b);
}

const collator = new Intl.Collator("en", { numeric: true });
const naturally = (a: string, b: string): number => collator.compare(a, b);

/** Keep the metrics whose names hold every word of a search, or match it as an expression between slashes. */
export function matching(metrics: Metric[], search: string): Metric[] {
  const pattern = expressionOf(search);
  if (pattern !== null) {
    const expression = compiled(pattern);
    return expression ? metrics.filter((metric) => expression.test(metric.name)) : [];
  }
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return metrics.filter((metric) => words.every((word) => metric.name.toLowerCase().includes(word)));
}

/** Whether a search is an expression that cannot be understood. */
export function isBadExpression(search: string): boolean {
  const pattern = expressionOf(search);
  return pattern !== null && compiled(pattern) === null;
}

const expressionOf = (search: string): string | null => /^\/(.+)\/$/.exec(search.trim())?.[1] ?? null;

function compiled(pattern: string): RegExp | null {
  try {
    return new RegExp(pattern, "i");
  } catch {
    return null;
  }
}

/** Whether a metric is set, not measured. */
export function isSchedule(name: string): boolean {
  return /(^|[/_])(lr|learning_rate|epoch|scale)$/.test(name);
}
