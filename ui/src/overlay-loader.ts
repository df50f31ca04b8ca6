/**
 * Loads the series of many runs for the charts in view.
 *
 * A chart subscribes to a metric. Its runs are loaded in batches, a few requests at a time, and the chart is called after
 * each batch, so that the first lines appear early. When a run has recorded more, its series are loaded again, at most
 * every few seconds. A different axis or range drops all requests and starts anew; charts keep their lines until then,
 * unless the axis has changed. Other runs change nothing about those that stay: a run that is hidden and shown again is
 * not loaded again, unless it has recorded more or was loaded much too coarsely.
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
  /** The series of all runs that were loaded, also of those that are not asked for any more. */
  byRun: SeriesByRun;
  /** The version of each run that was loaded or is being loaded, and the number of points it was loaded with. */
  versions: Map<string, { version: string; points: number }>;
  listeners: Set<Listener>;
}

const maxRequests = 2;
const retryMs = 3000;
const incompleteMs = 300;
/** A run is loaded again if there is room for this many times its points. */
const maxCoarseness = 3;

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
    const series = this.#seriesOf(entry);
    if (Object.keys(series).length > 0) listener(series);
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
    const isSameRange = query.x === before.x && query.low === before.low && query.high === before.high;
    if (isSameRuns && isSameRange) return;
    this.#query = query;
    if (!isSameRange) {
      this.#aborter.abort();
      this.#aborter = new AbortController();
    }
    for (const [name, entry] of this.#entries) {
      if (!isSameRange) entry.versions.clear();
      if (query.x !== before.x) entry.byRun = {};
      if (!isSameRange && entry.listeners.size === 0) this.#entries.delete(name);
      else this.#notify(entry);
    }
    this.#next();
  }

  /** The series of the runs that are asked for. */
  #seriesOf({ byRun }: Entry): SeriesByRun {
    const found: SeriesByRun = {};
    for (const run of this.#query.runs) if (byRun[run]) found[run] = byRun[run];
    return found;
  }

  #notify(entry: Entry): void {
    if (entry.listeners.size === 0) return;
    const series = this.#seriesOf(entry);
    for (const listener of entry.listeners) listener(series);
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
      const due = this.#query.runs.filter((run) => this.#isDue(entry, run));
      if (due.length > 0) return { name, entry, runs: due.slice(0, this.#batchSize) };
    }
    return null;
  }

  #isDue({ versions }: Entry, run: string): boolean {
    const loaded = versions.get(run);
    return loaded?.version !== (this.#versions[run] ?? "") || loaded.points * maxCoarseness <= this.#query.points;
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
    const { points } = this.#query;
    for (const run of runs) entry.versions.set(run, { version: this.#versions[run] ?? "", points });
    this.#numRequests++;
    try {
      const found = await this.#fetch(runs, name, this.#query, signal);
      if (signal.aborted) return;
      // A run of which nothing has been read yet is not a run without points.
      const known = found.filter(({ series, isComplete }) => isComplete || series.lines.length > 0);
      entry.byRun = { ...entry.byRun, ...Object.fromEntries(known.map(({ run, series }) => [run, series])) };
      this.#notify(entry);
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
