/** What the overview shows of training plugins. */

import type { MetricView, Num, PluginUse } from "../api";

export interface PluginMetrics {
  /** Whether the plugin had an effect when it was last reported; null if that is unknown. */
  active: boolean | null;
  others: { name: string; label: string; last: Num | null }[];
}

/** Return the metrics of a plugin, with names that do not repeat its own. */
export function pluginMetrics(metrics: MetricView[], plugin: string): PluginMetrics {
  const prefix = `plugin/${plugin}/`;
  const own = metrics.filter((metric) => metric.name.startsWith(prefix));
  const active = own.find((metric) => metric.name === `${prefix}active`);
  return {
    active: active ? active.last !== 0 : null,
    others: own
      .filter((metric) => metric !== active)
      .map((metric) => ({ name: metric.name, label: metric.name.slice(prefix.length), last: metric.last ?? null })),
  };
}

/** The hooks that run during training; all others run before or after it. */
const isStepHook = (hook: string): boolean => hook.startsWith("on_");

/** Return the time of the hooks that run once. */
export function setupSeconds(plugin: PluginUse): number {
  return sum(Object.entries(plugin.hook_ms).filter(([hook]) => !isStepHook(hook)));
}

/** Return the time of the hooks that run during training. */
export function stepSeconds(plugin: PluginUse): number {
  return sum(Object.entries(plugin.hook_ms).filter(([hook]) => isStepHook(hook)));
}

const sum = (times: [string, number][]): number => times.reduce((total, [, ms]) => total + ms / 1000, 0);
