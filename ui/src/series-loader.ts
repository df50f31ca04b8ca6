/**
 * Loads the series of all visible panels with few requests.
 *
 * Panels subscribe to a series of a run. The first request for a series returns the whole range, downsampled; later
 * requests pass the response's cursor and return only points recorded since, which are appended. Series with the same
 * cursor share a request, up to a limit. When the appended points exceed three times the wanted number, the series is
 * loaded as a whole again, because the server's downsampling keeps the chart small.
 *
 * Within a run there is one request at a time, and the series that has waited longest comes first, so that a busy run
 * cannot starve a panel.
 */

import type { SeriesPage, SeriesQuery, SeriesView } from "./api";
import { type AxisName, axisQuery } from "./model/axis-name";
import type { SeriesByRun, SeriesSource } from "./overlay-loader";
import { merge, numPoints, pointsUpTo } from "./model/series";

/** The series of some runs as charts of many runs need them. */
export function seriesOf(loader: SeriesLoader, runs: string[]): SeriesSource {
  return {
    subscribe(name, listener) {
      let byRun: SeriesByRun = {};
      const stops = runs.map((run) =>
        loader.subscribe(run, name, (series) => {
          byRun = { ...byRun, [run]: series };
          listener(byRun);
        }),
      );
      return () => {
        for (const stop of stops) stop();
      };
    },
  };
}

/** The part of the x axis to load; null loads everything. */
export interface SeriesRange {
  x: AxisName;
  low: number | null;
  high: number | null;
}

type Fetch = (run: string, query: SeriesQuery, signal: AbortSignal) => Promise<SeriesPage>;
type Listener = (series: SeriesView) => void;

interface Entry {
  run: string;
  name: string;
  series: SeriesView | null;
  /** Where the loaded points end; null if the whole range must be loaded. */
  cursor: string | null;
  /** The version of the run at the latest request. */
  version: string;
  /** The number of the latest request. */
  turn: number;
  /** The latest request failed; it is retried after a pause. */
  hasFailed: boolean;
  listeners: Set<Listener>;
}

const maxNamesPerRequest = 24;
const pauseMs = 150;
const retryMs = 2000;

export class SeriesLoader {
  readonly #entries = new Map<string, Entry>();
  readonly #versions = new Map<string, string>();
  readonly #loadingRuns = new Set<string>();
  #limits = new Map<string, number | null>();
  readonly #fetch: Fetch;
  readonly #points: number;
  readonly #onError: (message: string | null) => void;
  #range: SeriesRange;
  #aborter = new AbortController();
  #turn = 0;
  #retry: ReturnType<typeof setTimeout> | undefined;

  constructor(fetch: Fetch, range: SeriesRange, points: number, onError: (message: string | null) => void = () => {}) {
    this.#fetch = fetch;
    this.#range = range;
    this.#points = points;
    this.#onError = onError;
  }

  /** Call the listener with the series now and whenever it changes. Returns a function that unsubscribes. */
  subscribe(run: string, name: string, listener: Listener): () => void {
    const key = `${run}\n${name}`;
    let entry = this.#entries.get(key);
    if (!entry) {
      entry = { run, name, series: null, cursor: null, version: "", turn: 0, hasFailed: false, listeners: new Set() };
      this.#entries.set(key, entry);
    }
    entry.listeners.add(listener);
    if (entry.series) listener(entry.series);
    queueMicrotask(() => void this.#loadRun(run));
    return () => {
      entry.listeners.delete(listener);
      if (entry.listeners.size === 0) this.#entries.delete(key);
    };
  }

  /** Repeat failed requests now. */
  retry(): void {
    clearTimeout(this.#retry);
    this.#retry = undefined;
    const failed = [...this.#entries.values()].filter((entry) => entry.hasFailed);
    for (const entry of failed) entry.hasFailed = false;
    for (const run of new Set(failed.map((entry) => entry.run))) void this.#loadRun(run);
  }

  /** Load what a run has recorded since its last version. */
  refresh(run: string, version: string): void {
    this.#versions.set(run, version);
    void this.#loadRun(run);
  }

  /** Load another range, and drop requests for the previous one. */
  setRange(range: SeriesRange): void {
    const { x, low, high } = this.#range;
    if (range.x === x && range.low === low && range.high === high) return;
    this.#range = range;
    this.#aborter.abort();
    this.#aborter = new AbortController();
    for (const entry of this.#entries.values()) {
      entry.cursor = null;
      if (range.x !== x) entry.series = null;
    }
    for (const run of new Set([...this.#entries.values()].map((entry) => entry.run))) void this.#loadRun(run);
  }

  /** Load some runs only up to a step each; null loads everything. Nothing else refreshes these runs. */
  setLimits(limits: Map<string, number | null>): void {
    const runs = [...new Set([...this.#limits.keys(), ...limits.keys()])];
    const changed = runs.filter((run) => (this.#limits.get(run) ?? null) !== (limits.get(run) ?? null));
    this.#limits = limits;
    if (changed.length === 0) return;
    this.#aborter.abort();
    this.#aborter = new AbortController();
    for (const entry of this.#entries.values()) {
      if (changed.includes(entry.run)) [entry.cursor, entry.series] = [null, null];
    }
    for (const run of new Set([...this.#entries.values()].map((entry) => entry.run))) void this.#loadRun(run);
  }

  close(): void {
    clearTimeout(this.#retry);
    this.#aborter.abort();
    this.#entries.clear();
  }

  async #loadRun(run: string): Promise<void> {
    if (this.#loadingRuns.has(run)) return;
    this.#loadingRuns.add(run);
    try {
      for (let batch = this.#nextBatch(run); batch.length > 0; batch = this.#nextBatch(run)) {
        await this.#loadBatch(run, batch);
        if (batch[0]?.cursor !== null) await new Promise((resolve) => setTimeout(resolve, pauseMs));
      }
    } finally {
      this.#loadingRuns.delete(run);
    }
  }

  /** The entries of the next request, all with the same cursor. */
  #nextBatch(run: string): Entry[] {
    const version = this.#versions.get(run) ?? "";
    const due = [...this.#entries.values()].filter(
      (entry) => entry.run === run && !entry.hasFailed && (entry.cursor === null || entry.version !== version),
    );
    const cursors = new Set(due.map((entry) => entry.cursor));
    // Panels that became visible at different times have different cursors: load them whole once, then together.
    if (cursors.size > 1 && due.length <= maxNamesPerRequest) for (const entry of due) entry.cursor = null;
    due.sort((a, b) => a.turn - b.turn);
    const first = due.find((entry) => entry.cursor === null) ?? due[0];
    return first ? due.filter((entry) => entry.cursor === first.cursor).slice(0, maxNamesPerRequest) : [];
  }

  async #loadBatch(run: string, batch: Entry[]): Promise<void> {
    const { signal } = this.#aborter;
    this.#turn++;
    for (const entry of batch) entry.turn = this.#turn;
    const version = this.#versions.get(run) ?? "";
    const after = batch[0]?.cursor ?? null;
    let page: SeriesPage;
    try {
      page = await this.#fetch(run, { ...this.#query(run), name: batch.map((entry) => entry.name), after }, signal);
      this.#onError(null);
    } catch (error) {
      if (signal.aborted) return;
      for (const entry of batch) entry.hasFailed = true;
      this.#onError(error instanceof Error ? error.message : String(error));
      this.#retry ??= setTimeout(() => this.retry(), retryMs);
      return;
    }
    if (signal.aborted) return; // the range has changed meanwhile
    batch.forEach((entry, index) => this.#update(entry, page, index, version));
    if (page.indexed < 1 && this.#limits.has(run)) {
      setTimeout(() => !signal.aborted && this.refresh(run, page.version), retryMs);
    }
  }

  /** A zoomed range is extended to the left by its own width, so that smoothing has earlier points to start from. */
  #query(run: string): Omit<SeriesQuery, "name"> {
    const { low, high: end } = this.#range;
    const axis = axisQuery(this.#range.x);
    const limit = this.#limits.get(run) ?? null;
    const high = end === null || limit === null ? (end ?? limit) : Math.min(end, limit);
    if (low !== null && high !== null && high <= low) return { ...axis, low: high, high, points: this.#points };
    if (low === null || high === null) return { ...axis, low, high, points: this.#points };
    return { ...axis, low: low - (high - low), high, points: 2 * this.#points };
  }

  #update(entry: Entry, page: SeriesPage, index: number, version: string): void {
    const answer = page.series[index];
    if (!answer) return;
    const series = pointsUpTo(answer, this.#limits.get(entry.run) ?? Infinity);
    const hasNews = page.is_whole || series.lines.length > 0 || series.marks.length > 0;
    entry.series = page.is_whole || !entry.series ? series : hasNews ? merge(entry.series, series) : entry.series;
    entry.version = version;
    const hasTooManyPoints = !page.is_whole && numPoints(entry.series) > 3 * this.#points;
    entry.cursor = hasTooManyPoints ? null : page.cursor;
    if (hasNews) for (const listener of entry.listeners) listener(entry.series);
  }
}
