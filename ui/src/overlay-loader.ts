/**
 * Loads the series of many runs for the charts in view.
 *
 * A chart subscribes to a metric. Its runs are loaded in batches, a few requests at a time, and the chart is called after
 * each batch, so that the first lines appear early. When a run has recorded more, its series are loaded again, at most
 * every few seconds. A different axis or range drops all requests and starts anew; charts keep their lines until then,
 * unless the axis has changed.
 */

import type { SeriesView, XAxis } from "./api";

export interface OverlayQuery {
  runs: string[];
  x: XAxis;
  low: number | null;
  high: number | null;
  points: number;
}

export interface LoadedSeries {
  run: string;
  series: SeriesView;
  /** Whether the server has read the whole journal; if not, the series is loaded again. */
  isComplete: boolean;
}

type Fetch = (runs: string[], name: string, query: OverlayQuery, signal: AbortSignal) => Promise<LoadedSeries[]>;
export type SeriesByRun = Record<string, SeriesView>;
type Listener = (byRun: SeriesByRun) => void;

interface Entry {
  byRun: SeriesByRun;
  /** The version of each run that was loaded or is being loaded. */
  versions: Map<string, string>;
  listeners: Set<Listener>;
}

const maxRequests = 2;
const retryMs = 3000;
const incompleteMs = 300;

export class OverlayLoader {
  readonly #entries = new Map<string, Entry>();
  readonly #fetch: Fetch;
  readonly #onError: (message: string | null) => void;
  readonly #batchSize: number;
  #query: OverlayQuery;
  #order: readonly string[] = [];
  #versions: Record<string, string> = {};
  #aborter = new AbortController();
  #numRequests = 0;
  #retry: ReturnType<typeof setTimeout> | undefined;

  constructor(fetch: Fetch, query: OverlayQuery, onError: (message: string | null) => void, batchSize = 50) {
    this.#fetch = fetch;
    this.#query = query;
    this.#onError = onError;
    this.#batchSize = batchSize;
  }

  /** Call the listener with the series of all runs, now and whenever they change. Returns a function that stops it. */
  subscribe(name: string, listener: Listener): () => void {
    const entry = this.#entries.get(name) ?? { byRun: {}, versions: new Map(), listeners: new Set() };
    this.#entries.set(name, entry);
    entry.listeners.add(listener);
    if (Object.keys(entry.byRun).length > 0) listener(entry.byRun);
    queueMicrotask(() => this.#next());
    return () => void entry.listeners.delete(listener);
  }

  /** Load the metrics of a page from its top. */
  setOrder(names: readonly string[]): void {
    this.#order = names;
  }

  setQuery(query: OverlayQuery): void {
    const before = this.#query;
    const isSameRuns = query.runs.length === before.runs.length && query.runs.every((run, i) => run === before.runs[i]);
    if (isSameRuns && query.x === before.x && query.low === before.low && query.high === before.high) return;
    this.#query = query;
    this.#aborter.abort();
    this.#aborter = new AbortController();
    for (const [name, entry] of this.#entries) {
      entry.versions.clear();
      if (query.x !== before.x) entry.byRun = {};
      if (entry.listeners.size === 0) this.#entries.delete(name);
      else for (const listener of entry.listeners) listener(entry.byRun);
    }
    this.#next();
  }

  /** Load the series of runs whose version has changed. */
  refresh(versions: Record<string, string>): void {
    this.#versions = versions;
    this.#next();
  }

  close(): void {
    clearTimeout(this.#retry);
    this.#aborter.abort();
    this.#entries.clear();
  }

  #next(): void {
    while (this.#numRequests < maxRequests && this.#retry === undefined) {
      const job = this.#nextJob();
      if (!job) return;
      void this.#load(job.name, job.entry, job.runs);
    }
  }

  /** The first metric with runs that are not loaded. */
  #nextJob(): { name: string; entry: Entry; runs: string[] } | null {
    for (const name of new Set([...this.#order, ...this.#entries.keys()])) {
      const entry = this.#entries.get(name);
      if (!entry || entry.listeners.size === 0) continue;
      const due = this.#query.runs.filter((run) => entry.versions.get(run) !== (this.#versions[run] ?? ""));
      if (due.length > 0) return { name, entry, runs: due.slice(0, this.#batchSize) };
    }
    return null;
  }

  /** Send no requests for a while. */
  #pause(ms: number): void {
    this.#retry ??= setTimeout(() => {
      this.#retry = undefined;
      this.#next();
    }, ms);
  }

  async #load(name: string, entry: Entry, runs: string[]): Promise<void> {
    const { signal } = this.#aborter;
    for (const run of runs) entry.versions.set(run, this.#versions[run] ?? "");
    this.#numRequests++;
    try {
      const found = await this.#fetch(runs, name, this.#query, signal);
      if (signal.aborted) return;
      // A run of which nothing has been read yet is not a run without points.
      const known = found.filter(({ series, isComplete }) => isComplete || series.lines.length > 0);
      entry.byRun = { ...entry.byRun, ...Object.fromEntries(known.map(({ run, series }) => [run, series])) };
      for (const listener of entry.listeners) listener(entry.byRun);
      this.#onError(null);
      const incomplete = found.filter(({ isComplete }) => !isComplete);
      for (const { run } of incomplete) entry.versions.delete(run);
      if (incomplete.length > 0) this.#pause(incompleteMs);
    } catch (error) {
      if (signal.aborted) return;
      for (const run of runs) entry.versions.delete(run);
      this.#onError(error instanceof Error ? error.message : String(error));
      this.#pause(retryMs);
    } finally {
      this.#numRequests--;
      this.#next();
    }
  }
}
