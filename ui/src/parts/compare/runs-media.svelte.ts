/** The media of the compared runs: their names and steps, and the items as they are needed. */

import { api, ApiError, type MediaMetricPage, type MediaNameView } from "../../api";
import { live } from "../../live.svelte";
import { MediaLoader } from "../../media-loader.svelte";
import { keepEqual } from "../../model/equal";
import { Resource } from "../../resource.svelte";

const numParallelRequests = 4;
const unreadPauseMs = 1000;
/** A run that is recorded changes all the time. */
const livePauseMs = 1500;

export class RunsMedia {
  /** The names of each run that has been read. */
  names = $state.raw<ReadonlyMap<string, MediaNameView[]>>(new Map());
  /** Runs that do not exist. */
  missing = $state.raw<string[]>([]);
  /** The chosen metric at the steps with media, by run. */
  metrics = $state.raw<ReadonlyMap<string, MediaMetricPage>>(new Map());

  readonly #loaders = new Map<string, MediaLoader>();
  readonly #versions = new Map<string, string>();
  readonly #metricVersions = new Map<string, string>();
  #isClosed = false;
  #retry: ReturnType<typeof setTimeout> | undefined;
  readonly #loadedNames: Resource<void>;
  readonly #loadedMetrics: Resource<void>;

  /**
   * Create it during a component's initialisation.
   *
   * `metricOf` returns the metric to read and the name of the media at whose steps, or null.
   */
  constructor(runs: () => string[], metricOf: () => { name: string; metric: string } | null) {
    // The size of each journal: pictures may arrive long after the last step.
    const versions = $derived.by(
      keepEqual(() => Object.fromEntries(runs().map((run) => [run, String(live.run(run)?.size_bytes ?? "")]))),
    );
    this.#loadedNames = new Resource(() => this.#loadNames(runs(), versions), livePauseMs);
    $effect(() => this.#loadedNames.refreshWhenChanged(runs(), versions, live.numReconnects));
    $effect(() => () => {
      this.#isClosed = true;
      clearTimeout(this.#retry);
    });
    this.#loadedMetrics = new Resource(() => this.#loadMetrics(runs(), versions, metricOf()), livePauseMs);
    $effect(() => this.#loadedMetrics.refreshWhenChanged(runs(), versions, metricOf(), live.numReconnects));
  }

  get error(): string | null {
    return this.#loadedNames.error ?? this.#loadedMetrics.error;
  }

  /** What loads the items of a name of a run. */
  loader(run: string, name: string): MediaLoader {
    const key = JSON.stringify([run, name]);
    const loader = this.#loaders.get(key) ?? new MediaLoader(run, name);
    this.#loaders.set(key, loader);
    return loader;
  }

  async #loadNames(runs: string[], versions: Record<string, string>): Promise<void> {
    clearTimeout(this.#retry);
    const due = runs.filter((run) => this.#versions.get(run) !== (versions[run] ?? ""));
    let isUnread = false;
    await inParallel(due, async (run) => {
      const page = await unlessMissing(api.listMedia(run));
      if (page === null) this.missing = [...new Set([...this.missing, run])];
      else this.names = new Map([...this.names, [run, page.media]]);
      if (page !== null && page.indexed < 1) isUnread = true;
      else this.#versions.set(run, versions[run] ?? "");
    });
    if (isUnread && !this.#isClosed) this.#retry = setTimeout(() => void this.#loadedNames.refresh(), unreadPauseMs);
  }

  async #loadMetrics(
    runs: string[],
    versions: Record<string, string>,
    query: { name: string; metric: string } | null,
  ): Promise<void> {
    if (query === null) {
      this.#metricVersions.clear();
      this.metrics = new Map();
      return;
    }
    const versionOf = (run: string): string => JSON.stringify([query, versions[run] ?? ""]);
    const due = runs.filter((run) => this.#metricVersions.get(run) !== versionOf(run));
    await inParallel(due, async (run) => {
      const page = await unlessMissing(api.getMediaMetric(run, query));
      if (page !== null) this.metrics = new Map([...this.metrics, [run, page]]);
      this.#metricVersions.set(run, versionOf(run));
    });
  }
}

async function unlessMissing<Value>(request: Promise<Value>): Promise<Value | null> {
  try {
    return await request;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

async function inParallel(runs: string[], load: (run: string) => Promise<void>): Promise<void> {
  const waiting = [...runs];
  const work = async (): Promise<void> => {
    for (let run = waiting.shift(); run !== undefined; run = waiting.shift()) await load(run);
  };
  await Promise.all(Array.from({ length: numParallelRequests }, work));
}
