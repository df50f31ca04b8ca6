/** The metrics of the compared runs. */

import { api, ApiError, type MetricView } from "../../api";
import { live } from "../../live.svelte";
import { mergeMetrics } from "../../model/metric-groups";
import { Resource } from "../../resource.svelte";
import { LiveVersions, usualPeriodSeconds } from "./live-versions.svelte";

/** The first charts appear early if only a few runs are asked for at a time. */
const batchSize = 4;
/** A run that is recorded gets new metrics now and then, such as those of its first validation. */
const newMetricsPeriodSeconds = 20;

export class RunMetrics {
  /** Null until the first runs are read. */
  value = $state.raw<MetricView[] | null>(null);
  /** Runs that do not exist. */
  missing = $state.raw<string[]>([]);

  readonly #byRun = new Map<string, MetricView[]>();
  /** The version of each run at which its metrics were loaded. */
  readonly #versions = new Map<string, string>();
  readonly #loaded: Resource<void>;
  #isClosed = false;

  /** Create it during a component's initialisation. */
  constructor(runs: () => string[]) {
    const versions = new LiveVersions(runs, () => (this.value?.length ? newMetricsPeriodSeconds : usualPeriodSeconds));
    this.#loaded = new Resource(() => this.#load(runs, versions.value), 250);
    $effect(() => this.#loaded.refreshWhenChanged(runs(), versions.value, live.numReconnects));
    $effect(() => () => {
      this.#isClosed = true;
    });
  }

  /** Why the metrics of some runs could not be read; null if they were. */
  get error(): string | null {
    return this.#loaded.error;
  }

  async #load(runs: () => string[], versions: Record<string, string>): Promise<void> {
    const names = runs();
    const missing = new Set<string>();
    const failures: unknown[] = [];
    const load = async (name: string): Promise<void> => {
      try {
        this.#byRun.set(name, (await api.listMetrics(name)).metrics);
        this.#versions.set(name, versions[name] ?? "");
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) missing.add(name);
        else failures.push(error);
      }
    };
    const due = names.filter((name) => this.#versions.get(name) !== (versions[name] ?? ""));
    for (let start = 0; start < due.length; start += batchSize) {
      await Promise.all(due.slice(start, start + batchSize).map(load));
      if (this.#isClosed || runs() !== names) return; // other runs were chosen, which are loaded next
      this.value = mergeMetrics(names.map((name) => this.#byRun.get(name) ?? []));
    }
    this.value = mergeMetrics(names.map((name) => this.#byRun.get(name) ?? []));
    this.missing = names.filter((name) => missing.has(name));
    if (failures.length > 0) throw failures[0];
  }
}
