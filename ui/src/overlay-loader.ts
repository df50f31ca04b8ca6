/**
 * Loads the series of many runs for the charts in view.
 *
 * A chart subscribes to a metric. Its runs are loaded in batches, a few requests at a time, and the chart is called after
 * each batch, so that the first lines appear early. When a run has recorded more, its series are loaded again, at most
 * every few seconds. A different axis or range drops all requests and starts anew; charts keep their lines until then,
 * unless the axis has changed. Other runs change nothing about those that stay: a run that is hidden and shown again is
 * not loaded again, unless it has recorded more or was loaded much too coarsely. `on` has the series on an axis of their
 * own, with a range of its own.
 */

import type { SeriesView } from "./api";
import type { AxisName } from "./model/axis-name";

export interface OverlayQuery {
  runs: string[];
  x: AxisName;
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

/** Where a chart gets its series from. */
export interface SeriesSource {
  /** Call the listener with the series of all runs, now and whenever they change. Returns a function that stops it. */
  subscribe(name: string, listener: Listener): () => void;
}

interface Entry {
  name: string;
  /** The axis, if it is not that of the query. */
  axis: AxisName | null;
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

export class OverlayLoader implements SeriesSource {
  readonly #entries = new Map<string, Entry>();
  readonly #fetch: Fetch;
  readonly #onError: (message: string | null) => void;
  readonly #batchSize: number;
  #query: OverlayQuery;
  #ranks = new Map<string, number>();
  readonly #ranges = new Map<AxisName, [low: number | null, high: number | null]>();
  readonly #sources = new Map<AxisName, SeriesSource>();
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

  subscribe(name: string, listener: Listener): () => void {
    return this.#subscribe(name, null, listener);
  }

  /** The series on another axis; the same object for the same axis. */
  on(axis: AxisName): SeriesSource {
    const source = this.#sources.get(axis) ?? {
      subscribe: (name: string, listener: Listener) => this.#subscribe(name, axis, listener),
    };
    this.#sources.set(axis, source);
    return source;
  }

  /** Load a part of another axis. */
  setRange(axis: AxisName, low: number | null, high: number | null): void {
    const [lowBefore, highBefore] = this.#ranges.get(axis) ?? [null, null];
    if (low === lowBefore && high === highBefore) return;
    this.#ranges.set(axis, [low, high]);
    this.#dropRequests();
    for (const entry of this.#entries.values()) this.#notify(entry);
    this.#next();
  }

  /** All series are loaded again, and charts keep theirs until then. */
  #dropRequests(): void {
    this.#aborter.abort();
    this.#aborter = new AbortController();
    for (const [key, entry] of this.#entries) {
      entry.versions.clear();
      if (entry.listeners.size === 0) this.#entries.delete(key);
    }
  }

  #subscribe(name: string, axis: AxisName | null, listener: Listener): () => void {
    const key = `${axis ?? ""}\n${name}`;
    const entry = this.#entries.get(key) ?? { name, axis, byRun: {}, versions: new Map(), listeners: new Set() };
    this.#entries.set(key, entry);
    entry.listeners.add(listener);
    const series = this.#seriesOf(entry);
    if (Object.keys(series).length > 0) listener(series);
    queueMicrotask(() => this.#next());
    return () => void entry.listeners.delete(listener);
  }

  /** Load the metrics of a page from its top. */
  setOrder(names: readonly string[]): void {
    this.#ranks = new Map(names.map((name, index) => [name, index]));
  }

  setQuery(query: OverlayQuery): void {
    const before = this.#query;
    const isSameRuns = query.runs.length === before.runs.length && query.runs.every((run, i) => run === before.runs[i]);
    const isSameRange = query.x === before.x && query.low === before.low && query.high === before.high;
    if (isSameRuns && isSameRange) return;
    this.#query = query;
    if (!isSameRange) this.#dropRequests();
    for (const entry of this.#entries.values()) {
      if (query.x !== before.x && entry.axis === null) entry.byRun = {};
      this.#notify(entry);
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

  /** Whether no chart waits for lines. */
  get isIdle(): boolean {
    return this.#numRequests === 0;
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
      void this.#load(job.entry, job.runs);
    }
  }

  /** The first metric with runs that are not loaded. */
  #nextJob(): { entry: Entry; runs: string[] } | null {
    const rank = ({ name }: Entry): number => this.#ranks.get(name) ?? this.#ranks.size;
    for (const entry of [...this.#entries.values()].sort((a, b) => rank(a) - rank(b))) {
      if (entry.listeners.size === 0) continue;
      const due = this.#query.runs.filter((run) => this.#isDue(entry, run));
      if (due.length > 0) return { entry, runs: due.slice(0, this.#batchSize) };
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

  async #load(entry: Entry, runs: string[]): Promise<void> {
    const { signal } = this.#aborter;
    const { points } = this.#query;
    for (const run of runs) entry.versions.set(run, { version: this.#versions[run] ?? "", points });
    this.#numRequests++;
    const { axis } = entry;
    const [low, high] = (axis === null ? null : this.#ranges.get(axis)) ?? [null, null];
    const query = axis === null ? this.#query : { ...this.#query, x: axis, low, high };
    try {
      const found = await this.#fetch(runs, entry.name, query, signal);
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
