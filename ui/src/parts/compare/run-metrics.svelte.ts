/** The metrics of the compared runs, and whether they have media. */

import { api, type MetricFacts } from "../../api";
import { live } from "../../live.svelte";
import { type MergedMetric, mergeMetrics } from "../../model/metric-groups";
import { Resource } from "../../resource.svelte";
import { LiveVersions, usualPeriodSeconds } from "./live-versions.svelte";

/** The first charts appear early if only a few runs are asked for at first … */
const firstBatchSize = 4;
/** … and the others are read in a few requests. */
const batchSize = 50;
/** A run that is recorded gets new metrics now and then, such as those of its first validation. */
const newMetricsPeriodSeconds = 20;
/** The charts need the same journals; asking all the time would only slow down reading them. */
const unreadPauseMs = 1000;

export class RunMetrics {
  /** Null until the first runs are read, and without runs. */
  value = $state.raw<MergedMetric[] | null>(null);
  /** Whether one of the runs that were read has pictures, tables or other media. */
  hasMedia = $state(false);
  /** Runs that do not exist. */
  missing = $state.raw<string[]>([]);

  readonly #byRun = new Map<string, MetricFacts[]>();
  readonly #withMedia = new Set<string>();
  /** The version of each run at which all of its metrics were loaded. */
  readonly #versions = new Map<string, string>();
  readonly #loaded: Resource<void>;
  #isClosed = false;
  #retry: ReturnType<typeof setTimeout> | undefined;

  /** Create it during a component's initialisation. */
  constructor(runs: () => string[]) {
    const versions = new LiveVersions(runs, () => (this.value?.length ? newMetricsPeriodSeconds : usualPeriodSeconds));
    this.#loaded = new Resource(() => this.#load(runs, versions.value), 250);
    $effect(() => this.#loaded.refreshWhenChanged(runs(), versions.value, live.numReconnects));
    $effect(() => () => {
      this.#isClosed = true;
      clearTimeout(this.#retry);
    });
  }

  /** Why the metrics of some runs could not be read; null if they were. */
  get error(): string | null {
    return this.#loaded.error;
  }

  async #load(runs: () => string[], versions: Record<string, string>): Promise<void> {
    const names = runs();
    const missing = new Set<string>();
    let problem: string | null = null;
    let isUnread = false;
    clearTimeout(this.#retry);
    if (names.length === 0) {
      [this.value, this.hasMedia, this.missing] = [null, false, []];
      return;
    }
    const due = names.filter((name) => this.#versions.get(name) !== (versions[name] ?? ""));
    let size = this.value === null ? firstBatchSize : batchSize;
    for (let start = 0; start < due.length; start += size, size = batchSize) {
      const page = await api.listMetricsOfRuns(due.slice(start, start + size));
      if (this.#isClosed || runs() !== names) return; // other runs were chosen, which are loaded next
      for (const { run, metrics, indexed, has_media: hasMedia, exists, reason } of page.runs) {
        if (!exists) missing.add(run);
        else problem ??= reason;
        if (reason !== null) continue;
        this.#byRun.set(
          run,
          metrics.flatMap((index) => page.metrics[index] ?? []),
        );
        if (hasMedia) this.#withMedia.add(run);
        if (indexed < 1) isUnread = true;
        else this.#versions.set(run, versions[run] ?? "");
      }
      this.value = mergeMetrics(names.map((name) => this.#byRun.get(name) ?? []));
    }
    this.value = mergeMetrics(names.map((name) => this.#byRun.get(name) ?? []));
    this.hasMedia = names.some((name) => this.#withMedia.has(name));
    this.missing = names.filter((name) => missing.has(name));
    if (isUnread) this.#retry = setTimeout(() => void this.#loaded.refresh(), unreadPauseMs);
    if (problem !== null) throw new Error(problem);
  }
}
