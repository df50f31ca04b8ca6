import { describe, expect, it } from "vitest";
import type { MetricView, PluginUse } from "../api";
import { pluginMetrics, setupSeconds, stepSeconds } from "./plugins";

const metric = (name: string, last: number): MetricView => ({
  name,
  kind: "step",
  count: 1,
  last,
  last_step: 1,
  low: last,
  high: last,
  signal: null,
  same_as: null,
  num_not_finite: 0,
  x_metric: null,
  is_printed: false,
});

describe("plugin metrics", () => {
  const metrics = [
    metric("loss", 1),
    metric("plugin/kd/active", 1),
    metric("plugin/kd/kl", 0.5),
    metric("plugin/k/x", 2),
  ];

  it("are found by prefix and named without it", () => {
    expect(pluginMetrics(metrics, "kd")).toEqual({
      active: true,
      others: [{ name: "plugin/kd/kl", label: "kl", last: 0.5 }],
    });
  });

  it("say nothing about activity that was not reported", () => {
    expect(pluginMetrics(metrics, "k").active).toBeNull();
    expect(pluginMetrics([metric("plugin/k/active", 0)], "k").active).toBe(false);
  });
});

it("separates set-up from training", () => {
  const plugin = {
    name: "kd",
    hook_ms: { pre_model_load: 500, post_train: 1500, on_step_end: 20 },
  } as unknown as PluginUse;
  expect(setupSeconds(plugin)).toBe(2);
  expect(stepSeconds(plugin)).toBe(0.02);
});
