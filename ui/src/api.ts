/** The only file that knows the server's addresses, and the shapes of its answers. */

export type State = "running" | "finished" | "failed" | "crashed" | "stale";
/** JSON has no NaN and no infinity: they come as texts. */
export type Num = number | "NaN" | "Infinity" | "-Infinity";
export type XAxis = "step" | "time" | "relative" | "epoch";
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface RunLine {
  name: string;
  state: State;
  started: number | null;
  updated: number | null;
  duration_s: number | null;
  step: number | null;
  /** When the last step was recorded. */
  stepped: number | null;
  max_steps: number | null;
  progress: number | null;
  eta_s: number | null;
  steps_per_sec: number | null;
  train_loss: Num | null;
  host: string | null;
  tags: string[];
  session_tag: string | null;
  reason: string | null;
  size_bytes: number;
  num_dropped: number;
  num_open_alerts: number;
  num_critical_alerts: number;
}

export interface Runs {
  log_dir: string;
  runs: RunLine[];
}

export interface Attempt {
  index: number;
  state: State;
  started: number | null;
  updated: number | null;
  first_step: number | null;
  last_step: number | null;
  num_steps: number;
  num_records: number;
  reason: string | null;
}

export interface Goodput {
  share: number;
  wall_s: number;
  parts_s: Record<string, number>;
}

export interface RunDetail extends RunLine {
  version: string;
  indexed: number;
  run_id: string | null;
  path: string;
  perf_tag: string[];
  attempts: Attempt[];
  config: { [key: string]: Json };
  facts: { [key: string]: Json };
  system: { [key: string]: Json };
  git: { [key: string]: Json };
  goodput: Goodput | null;
  phases_s: Record<string, number>;
  num_records: Record<string, number>;
  num_lost_records: number;
  num_bad_lines: number;
  checkpoints: JournalRecord[];
}

export interface Metric {
  name: string;
  kind: string;
  count: number;
  last: Num | null;
  last_step: number | null;
  low: number | null;
  high: number | null;
  num_not_finite: number;
}

export interface Metrics {
  version: string;
  indexed: number;
  metrics: Metric[];
}

export interface Line {
  stream: string;
  attempt: number;
  x: number[];
  /** Null where the line is broken. */
  y: (number | null)[];
  /** Means of equal stretches; empty where every point is in `x` and `y`. */
  mean_x: number[];
  mean_y: number[];
  mean_count: number[];
  num_points: number;
}

export interface Mark {
  x: number;
  kind: "NaN" | "Infinity" | "-Infinity";
  count: number;
}

export interface Series {
  name: string;
  /** The value that was recorded last, in the view or not. */
  last: Num | null;
  lines: Line[];
  marks: Mark[];
}

export interface Views {
  version: string;
  indexed: number;
  cursor: string;
  is_whole: boolean;
  start: number;
  series: Series[];
}

export interface Heap {
  start: number;
  end: number;
  depth: number;
  count: number;
  total_s: number;
  name: string;
}

export interface Spans {
  names: string[];
  name: number[];
  id: string[];
  parent: number[];
  start: number[];
  /** Null for one that goes on. */
  duration_s: (number | null)[];
  depth: number[];
  status: string[];
  attempt: number[];
  heaps: Heap[];
  num_spans: number;
  num_left_out: number;
}

export interface JournalRecord {
  event: string;
  time: number;
  [field: string]: Json;
}

export interface Records {
  version: string;
  num_records: Record<string, number>;
  /** Routine events that are not in the list. */
  num_left_out: number;
  records: JournalRecord[];
}

export type Severity = "info" | "warning" | "critical";

/** A fault that a rule found, told once. */
export interface Alert {
  id: string;
  rule: string;
  /** The worst it came to. */
  severity: Severity;
  title: string;
  message: string;
  /** What it usually means. */
  meaning: string;
  /** What people do about it. */
  advice: string[];
  evidence: { [name: string]: Json };
  /** The last times that the fault came back. */
  occurrences: { [name: string]: Json }[];
  num_occurrences: number;
  attempt: number;
  opened_time: number | null;
  opened_step: number | null;
  updated_time: number | null;
  updated_step: number | null;
  resolved_time: number | null;
  resolved_step: number | null;
  /** Why it was resolved. */
  outcome: string;
  /** Neither resolved, nor left behind by a process that ended before a resume. */
  is_open: boolean;
}

export interface Alerts {
  version: string;
  num_open: number;
  num_critical: number;
  num_left_out: number;
  /** The open ones first, the worst before the rest, then the others, the newest first. */
  alerts: Alert[];
}

/** A sample; lacks the columns that it does not have. */
export type CompletionRow = { [column: string]: Json };

export interface Completions {
  version: string;
  tables: string[];
  columns: string[];
  /** The newest first. */
  rows: CompletionRow[];
  /** Whether these are all that were asked for. */
  is_whole: boolean;
  /** The steps of which there are rows; of very many, some. */
  steps: number[];
  num_rows: number;
  num_rows_of_steps: number;
  num_dropped: number;
}

export interface CompletionQuery {
  /** Only of this step. */
  step?: number | null;
  search?: string;
  table?: string | null;
  limit?: number;
}

export interface Control {
  name: string;
  kind: "bool" | "int" | "float";
  value: number | boolean | null;
  min: number | null;
  max: number | null;
}

export interface Answer {
  id: string | null;
  control: string;
  status: string;
  time: number;
  value: Json;
  reason: string | null;
  wait_s: number | null;
}

export interface Controls {
  version: string;
  is_open: boolean;
  controls: Control[];
  requests: string[];
  answers: Answer[];
  changes: JournalRecord[];
}

/** What torch's profiler saw of some steps, stored in a file. */
export interface Trace {
  name: string;
  time: number;
  first_step: number;
  num_steps: number;
  size_bytes: number;
  duration_s: number | null;
}

export interface Traces {
  version: string;
  traces: Trace[];
}

export interface Changed {
  line: RunLine;
  /** The server's clock. */
  now: number;
  version: string | null;
  indexed: number | null;
}

export interface ViewQuery {
  names: string[];
  x: XAxis;
  low?: number | null;
  high?: number | null;
  points?: number;
  after?: string | null;
}

/** An answer that is not a success; its message is a sentence for people. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const root = "api/v1";

type Parameter = string | number | null | undefined;

function address(path: string, parameters: [string, Parameter][] = []): string {
  const query = new URLSearchParams();
  for (const [name, value] of parameters) {
    if (value !== null && value !== undefined) query.append(name, String(value));
  }
  const text = query.toString();
  return `${root}/${path}${text ? `?${text}` : ""}`;
}

function ofRun(run: string, rest = ""): string {
  return `runs/${encodeURIComponent(run)}${rest}`;
}

async function ask<Answer>(url: string, options: RequestInit = {}): Promise<Answer> {
  let response: Response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server cannot be reached. Is `tacho ui` still running?");
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    const fault = body?.error ?? { code: "bad_answer", message: `The server answered ${response.status}.` };
    throw new ApiError(response.status, fault.code, fault.message);
  }
  return response.status === 204 ? (undefined as Answer) : await response.json();
}

function post<Answer>(url: string, body: unknown): Promise<Answer> {
  return ask(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

const withSignal = (signal?: AbortSignal): RequestInit => (signal ? { signal } : {});

export const api = {
  runs: () => ask<Runs>(address("runs")),
  run: (run: string) => ask<RunDetail>(address(ofRun(run))),
  metrics: (run: string) => ask<Metrics>(address(ofRun(run, "/metrics"))),
  series: (run: string, query: ViewQuery, signal?: AbortSignal) =>
    ask<Views>(
      address(ofRun(run, "/series"), [
        ...query.names.map((name): [string, Parameter] => ["name", name]),
        ["x", query.x],
        ["low", query.low],
        ["high", query.high],
        ["points", query.points],
        ["after", query.after],
      ]),
      withSignal(signal),
    ),
  spans: (run: string, low: number | null, high: number | null, points: number, signal?: AbortSignal) =>
    ask<Spans>(
      address(ofRun(run, "/spans"), [
        ["low", low],
        ["high", high],
        ["points", points],
      ]),
      withSignal(signal),
    ),
  span: (run: string, id: string) =>
    ask<{ records: JournalRecord[] }>(address(ofRun(run, `/spans/${encodeURIComponent(id)}`))),
  records: (
    run: string,
    { kinds = [], limit = 1000, routine = false }: { kinds?: string[]; limit?: number; routine?: boolean } = {},
  ) =>
    ask<Records>(
      address(ofRun(run, "/records"), [
        ...kinds.map((kind): [string, Parameter] => ["kind", kind]),
        ["limit", limit],
        ["routine", routine ? "true" : null],
      ]),
    ),
  alerts: (run: string) => ask<Alerts>(address(ofRun(run, "/alerts"))),
  completions: (run: string, { step, search, table, limit }: CompletionQuery = {}) =>
    ask<Completions>(
      address(ofRun(run, "/completions"), [
        ["step_min", step],
        ["step_max", step],
        ["search", search || null],
        ["table", table],
        ["limit", limit],
      ]),
    ),
  controls: (run: string) => ask<Controls>(address(ofRun(run, "/controls"))),
  request: (run: string, values: Record<string, number | boolean>) =>
    post<{ ids: Record<string, string> }>(address(ofRun(run, "/controls")), { values }),
  traces: (run: string) => ask<Traces>(address(ofRun(run, "/traces"))),
  traceUrl: (run: string, name: string) => address(ofRun(run, `/traces/${encodeURIComponent(name)}`)),
  login: (token: string) => post<void>(address("login"), { token }),
  exportUrl: (
    run: string,
    names: string[],
    format: "csv" | "json",
    x: XAxis,
    low: number | null,
    high: number | null,
  ) =>
    address(ofRun(run, "/export"), [
      ...names.map((name): [string, Parameter] => ["name", name]),
      ["format", format],
      ["x", x],
      ["low", low],
      ["high", high],
    ]),
  /** Watch some runs closely, or all of them from afar; returns how to stop. */
  watch(
    runs: string[],
    on: {
      changed: (change: Changed) => void;
      gone: (name: string) => void;
      connected: (is: boolean, isFinal: boolean) => void;
    },
  ): () => void {
    const source = new EventSource(
      address(
        "live",
        runs.map((run): [string, Parameter] => ["run", run]),
      ),
    );
    source.addEventListener("changed", (event) => on.changed(JSON.parse(event.data)));
    source.addEventListener("gone", (event) => on.gone(JSON.parse(event.data).name));
    source.onopen = () => on.connected(true, false);
    source.onerror = () => on.connected(false, source.readyState === EventSource.CLOSED);
    return () => source.close();
  },
};
