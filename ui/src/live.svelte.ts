/**
 * The list of runs, kept up to date while the page is visible.
 *
 * The server streams changes as server-sent events (see `server/_live.py`). An event carries a run's summary and its
 * version; pages fetch the data itself when the version of their run changes. Browsers allow only about six
 * connections to a server, so a hidden page closes its stream and opens it again when it becomes visible.
 *
 * A stream that works sends an event at least every ten seconds. If there is none for much longer, a proxy holds them
 * back, or the connection is broken without either side noticing. The page then opens a new stream and fetches
 * everything again, so it stays current, if only every 40 seconds.
 */

import { api, ApiError, type CopyView, type RunSummary } from "./api";
import { isEqual } from "./model/equal";
import { session } from "./session.svelte";

const reconnectMs = 2000;
/** Changes that arrive together are applied together: a new stream reports every run. */
const collectMs = 16;
const silentMs = 40_000;

class Live {
  runs = $state.raw<RunSummary[]>([]);
  byName: ReadonlyMap<string, RunSummary> = $derived(new Map(this.runs.map((run) => [run.name, run])));
  logDir = $state("");
  logDirs = $state.raw<string[]>([]);
  isLoaded = $state(false);
  isConnected = $state(true);
  /** The error that the server answered with instead of changes; null if it did not answer. */
  streamError = $state.raw<ApiError | null>(null);
  /** Whether no event arrives although the server can be reached. */
  isSilent = $state(false);
  needsToken = $state(false);
  /** The dashboard belongs to another user of its machine. */
  isForeign = $state(false);
  error = $state<string | null>(null);
  /** The version of each watched run; it changes whenever something is recorded. */
  versions = $state<Record<string, string>>({});
  /** The fraction of each watched run's journal that the server has read. */
  indexed = $state<Record<string, number>>({});
  /** The version of each watched run's console output. */
  outputs = $state<Record<string, string>>({});
  /** How far a team's server has received each watched run; null for a run that was recorded there. */
  copies = $state<Record<string, CopyView | null>>({});
  /** Watched runs that no longer exist. */
  goneRuns = $state<string[]>([]);
  /** Counts changes of the list. */
  numChanges = $state(0);
  /** Counts reconnections. Requests that failed meanwhile may succeed now. */
  numReconnects = $state(0);
  /** The server's clock in Unix time, updated every second. */
  now = $state(Date.now() / 1000);

  #clockOffsetSeconds = 0;
  #hasLoaded = false;
  #isLoading = false;
  #heardAt = 0;
  /** What was reported since the last update; null for a run that is gone. */
  #reported = new Map<string, RunSummary | null>();
  #update: ReturnType<typeof setTimeout> | undefined;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #watched: string[] = [];
  /** The version of the list: the stream reports only later changes. */
  #listVersion: string | null = null;
  #listDelay: Promise<void> = Promise.resolve();
  #stop: (() => void) | null = null;

  constructor() {
    setInterval(() => {
      this.now = this.clock();
      this.#checkSilence();
    }, 1000);
    api.onUnauthorized = () => {
      if (!this.#isLoading && !this.needsToken) void this.load();
    };
    document.addEventListener("visibilitychange", () => this.#connect());
  }

  /** The server's clock at this moment, in Unix time. */
  clock(): number {
    return Date.now() / 1000 + this.#clockOffsetSeconds;
  }

  /** Watch the named runs, or the whole list. */
  watch(names: string[]): void {
    this.#watched = names;
    const isWholeList = names.length === 0;
    // A stream of named runs does not report changes of the list: load it again.
    const loaded = isWholeList || !this.#hasLoaded ? this.#listDelay.then(() => this.load()) : Promise.resolve();
    this.#hasLoaded = true;
    if (!isWholeList) this.#connect();
    // A stream that starts from the list need not report all of it again.
    else void loaded.then(() => this.#watched === names && this.#connect());
  }

  /**
   * Load the list of runs only when the returned function is called, or after a while.
   *
   * There may be thousands of runs, and a page that shows a few of them first would wait for all.
   */
  delayList(maxMs: number): () => void {
    let finish = (): void => {};
    this.#listDelay = new Promise((resolve) => {
      finish = resolve;
    });
    setTimeout(finish, maxMs);
    return finish;
  }

  async load(): Promise<void> {
    this.#isLoading = true;
    try {
      const [{ log_dir, log_dirs, version, runs }] = await Promise.all([api.listRuns(), session.load()]);
      this.#listVersion = version;
      this.logDir = log_dir;
      this.logDirs = log_dirs;
      // The stream knows more about a watched run than the list does.
      this.runs = runs.map((run) => (this.#watched.includes(run.name) ? this.run(run.name) : null) ?? run);
      this.goneRuns = this.goneRuns.filter((name) => !runs.some((run) => run.name === name));
      this.needsToken = false;
      this.error = null;
    } catch (error) {
      const needsToken = error instanceof ApiError && error.status === 401;
      if (needsToken) await session.askForLogin().catch(() => {}); // the page then asks for a token
      this.needsToken = needsToken;
      this.isForeign = error instanceof ApiError && error.code === "other_user";
      this.error = error instanceof Error ? error.message : String(error);
    }
    this.isLoaded = true;
    this.#isLoading = false;
  }

  run(name: string): RunSummary | undefined {
    return this.byName.get(name);
  }

  #connect(): void {
    clearTimeout(this.#retry);
    this.#stop?.();
    this.#stop = null;
    if (document.hidden || this.needsToken) return;
    this.#heardAt = performance.now();
    const after = this.#watched.length === 0 ? this.#listVersion : null;
    this.#stop = api.watchRuns(this.#watched, after, {
      changed: ({ line, version, indexed, output, copy, now }) => {
        this.#clockOffsetSeconds = now - Date.now() / 1000;
        this.#report(line.name, line);
        if (version !== null) {
          this.versions[line.name] = version;
          this.copies[line.name] = copy;
        }
        if (output !== null) this.outputs[line.name] = output;
        if (indexed !== null) this.indexed[line.name] = indexed;
      },
      gone: (name) => this.#report(name, null),
      heard: () => {
        this.#heardAt = performance.now();
        this.isSilent = false;
      },
      connection: (isConnected, isFinal) => this.#onConnection(isConnected, isFinal),
    });
  }

  #checkSilence(): void {
    if (!this.#stop || !this.isConnected || performance.now() - this.#heardAt < silentMs) return;
    this.isSilent = true;
    this.numReconnects++;
    void this.load().then(() => this.#connect());
  }

  #onConnection(isConnected: boolean, isFinal: boolean): void {
    if (isConnected && !this.isConnected) {
      this.numReconnects++;
      void this.load();
    }
    if (isFinal) void this.#retryLater();
    else [this.isConnected, this.streamError] = [isConnected, null];
  }

  /** The browser gives up if the response is not a stream, such as a request for the token. */
  async #retryLater(): Promise<void> {
    const stop = this.#stop;
    this.#retry = setTimeout(() => void this.load().then(() => this.#connect()), reconnectMs);
    const error = await api.explainStream(this.#watched);
    if (error === null || this.#stop !== stop) return; // another stream was opened meanwhile
    this.streamError = error.status > 0 ? error : null;
    this.isConnected = false;
  }

  #report(name: string, summary: RunSummary | null): void {
    this.#reported.set(name, summary);
    this.#update ??= setTimeout(() => this.#applyReported(), collectMs);
  }

  #applyReported(): void {
    const reported = [...this.#reported];
    this.#reported.clear();
    this.#update = undefined;
    const next = new Map(this.byName);
    for (const [name, summary] of reported) {
      if (summary === null) next.delete(name);
      else if (!isEqual(next.get(name), summary)) next.set(name, summary);
    }
    const present = new Set(reported.flatMap(([name, summary]) => (summary === null ? [] : name)));
    const gone = reported.flatMap(([name, summary]) => (summary === null ? name : []));
    if (this.goneRuns.length || gone.length)
      this.goneRuns = [...new Set([...this.goneRuns.filter((name) => !present.has(name)), ...gone])];
    if (reported.every(([name]) => next.get(name) === this.byName.get(name))) return;
    this.runs = [...next.values()];
    this.numChanges++;
  }
}

export const live = new Live();
