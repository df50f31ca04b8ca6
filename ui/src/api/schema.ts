// Generated from the server's OpenAPI document by `python ui/generate_schema.py`. Do not edit.

export type Json = null | boolean | number | string | Json[] | JsonObject;
export type JsonObject = { [key: string]: Json };
/** JSON has no NaN and no infinities: the server sends them as strings. */
export type Num = number | "NaN" | "Infinity" | "-Infinity";
/** A record of the journal: its kind, its time and the fields of its kind. */
export interface JournalRecord {
  event: string;
  time: number;
  [field: string]: Json;
}

/** The server is up. */
export interface ServerHealth {
  status: "ok";
  version: string;
}

/** The runs in the log folder, newest first. */
export interface RunsPage {
  /** The log folder, to be shown; several are joined with commas. */
  log_dir: string;
  /** All log folders. */
  log_dirs: string[];
  /** Changes with the list; a live stream `after` this version reports only later changes. */
  version: string;
  runs: RunSummary[];
}

/** A run as the list of runs shows it. */
export interface RunSummary {
  name: string;
  state: RunState;
  started: number | null;
  updated: number | null;
  duration_s: number | null;
  step: number | null;
  /** Time of the last recorded step. */
  stepped: number | null;
  max_steps: number | null;
  /** Fraction of steps completed, 0 to 1. */
  progress: number | null;
  /** Estimated seconds until the last step. */
  eta_s: number | null;
  steps_per_sec: number | null;
  train_loss: Num | null;
  host: string | null;
  tags: string[];
  session_tag: string | null;
  /** Why the run ended, or why it is in this state. */
  reason: string | null;
  size_bytes: number;
  /** Records dropped by the recorder. */
  num_dropped: number;
  num_open_alerts: number;
  /** Open alerts that are critical. */
  num_critical_alerts: number;
  /** When its name, tags, note or other annotations changed last. */
  annotated: number | null;
}

/** The state of a run. */
export type RunState = "crashed" | "failed" | "finished" | "interrupted" | "running" | "stale";

/** A run with its config, attempts, goodput and environment, but without metrics. */
export interface RunDetail {
  name: string;
  state: RunState;
  started: number | null;
  updated: number | null;
  duration_s: number | null;
  step: number | null;
  /** Time of the last recorded step. */
  stepped: number | null;
  max_steps: number | null;
  /** Fraction of steps completed, 0 to 1. */
  progress: number | null;
  /** Estimated seconds until the last step. */
  eta_s: number | null;
  steps_per_sec: number | null;
  train_loss: Num | null;
  host: string | null;
  tags: string[];
  session_tag: string | null;
  /** Why the run ended, or why it is in this state. */
  reason: string | null;
  size_bytes: number;
  /** Records dropped by the recorder. */
  num_dropped: number;
  num_open_alerts: number;
  /** Open alerts that are critical. */
  num_critical_alerts: number;
  /** When its name, tags, note or other annotations changed last. */
  annotated: number | null;
  /** Changes whenever a record is added. */
  version: string;
  /** Fraction of the journal read so far, 0 to 1. */
  indexed: number;
  run_id: string | null;
  path: string;
  /** Set if a team's server received the run; null for a run that was recorded in this folder. */
  copy: CopyView | null;
  perf_tag: string[];
  attempts: AttemptView[];
  config: JsonObject;
  /** Results of the whole run that the training code stated. */
  summary: JsonObject;
  /** Other facts about the run, such as model and LoRA settings. */
  facts: JsonObject;
  system: JsonObject;
  git: JsonObject;
  /** The captured code of the last attempt: `git`, `diff`, `files`, `packages` and so on. */
  code: JsonObject;
  /** The runs or checkpoints that the run started from. */
  parents: ParentRun[];
  /** The training plugins of the last attempt. */
  plugins: PluginUse[];
  /** Why the run failed or crashed. */
  failure: Failure | null;
  /** Seconds from the start of the program to the first record: goodput counts them, `duration_s` does not. */
  before_first_record_s: number;
  goodput: GoodputView | null;
  /** Seconds of the training loop by phase. */
  phases_s: Record<string, number>;
  /** The energy that the run used; null if no counter could be read. */
  energy: Energy | null;
  /** How much of the loop is recorded now, as a sentence; null if everything is. */
  sampling: string | null;
  /** Number of records by kind. */
  num_records: Record<string, number>;
  num_lost_records: number;
  /** About how many media records were not stored when the process was killed. */
  num_media_lost: number;
  /** Unreadable journal lines. */
  num_bad_lines: number;
  /** Logged data that no chart shows, such as arrays and values of unknown types. */
  notices: NoticeView[];
  checkpoints: JournalRecord[];
}

/** How far a team's server has received a run. */
export interface CopyView {
  /** When the client reported last, by the clock of the server. */
  seen: number;
  /** How many bytes the client had not sent then. */
  lag_bytes: number;
  /** By how much the clock of the trainer's machine is ahead of that of the server. */
  skew_s: number | null;
}

/** One attempt: the part of a run that one process recorded. */
export interface AttemptView {
  index: number;
  state: RunState;
  started: number | null;
  updated: number | null;
  /** Without changes of the wall clock, which `updated - started` includes. */
  duration_s: number | null;
  first_step: number | null;
  last_step: number | null;
  num_steps: number;
  num_records: number;
  /** The energy that it used, as far as it was measured. */
  energy_kwh: number | null;
  reason: string | null;
}

/** A run, or a checkpoint of it, that another run started from. */
export interface ParentRun {
  run_id: string | null;
  run_name: string | null;
  checkpoint_path: string | null;
  global_step: number | null;
  /** `resume`, `init`, `finetune`, `merge`, `distill`, or `artifact` for the run that stored an artifact. */
  how: string | null;
}

/** A plugin of a run, and its changes to the training. */
export interface PluginUse {
  name: string;
  /** The class of the plugin. */
  path: string;
  /** The parts of the training that it replaces. */
  slots: string[];
  options: JsonObject;
  changes: PluginChange[];
  /** Parts that it adds to the trainer, such as callbacks. */
  contributes: string[];
  /** Total time per hook. */
  hook_ms: Record<string, number>;
  /** How often it acted in training; None while training runs, or if it does not count. */
  num_effects: number | null;
}

/** One kind of change that a plugin made before training. */
export interface PluginChange {
  /** Such as `parameters frozen`. */
  what: string;
  count: number;
  /** The first names of the changed parts. */
  names: string[];
}

/** Why the last attempt of a run failed, as far as it was recorded. */
export interface Failure {
  error_type: string | null;
  message: string;
  traceback: string;
  /** The last step before the failure. */
  step: number | null;
  time: number | null;
  exit_code: number | null;
  /** What caused it, as far as a dump of this attempt shows it. */
  cause: string;
  /** How sure that is: `certain`, `likely` or `possible`. */
  confidence: string;
  /** The last lines that the process printed to each stream, if `tacho run` recorded them. */
  output: Record<string, string>;
}

/** How the run's time was spent, in seconds. */
export interface GoodputView {
  /** Productive training time divided by wall time. */
  share: number;
  /** Whether the run is long enough for its share to say something: a minute. */
  is_meaningful: boolean;
  wall_s: number;
  parts_s: Record<string, number>;
}

/** Energy by its source. A part without a counter is missing, never estimated. */
export interface Energy {
  /** The sum of the parts. */
  kwh: number;
  /** Of the GPUs that the run used. */
  gpu_kwh: number | null;
  /** Of the processors and the memory of all machines of the run, whatever ran on them. */
  cpu_kwh: number | null;
  num_gpus: number;
  /** The machines whose processors were measured. */
  num_hosts: number;
  /** With the stated price; None if there is none. */
  cost: number | null;
  currency: string;
  /** Emitted CO2 in grams, with the stated carbon intensity; None if there is none. */
  carbon_g: number | null;
  /** Parts that are not included, such as ranks without counters. */
  gaps: string[];
}

/** Data that the training code logged and that no chart shows. */
export interface NoticeView {
  /** The metric; null if it concerns whole records. */
  field: string | null;
  reason: string;
}

/** The ancestors and descendants of a run. */
export interface LineagePage {
  /** The share of runs that were looked at, 0 to 1; ask again if it is less than 1. */
  indexed: number;
  /** Its parents, each followed by its own. */
  ancestors: RelatedRun[];
  /** Its children, each followed by its own. */
  descendants: RelatedRun[];
}

/** A run that another one descends from, or that descends from it. */
export interface RelatedRun {
  /** The name of the run in its log folder; the recorded name if the run is not there. */
  run: string;
  run_id: string | null;
  /** The step of the parent's checkpoint that the child started from. */
  global_step: number | null;
  /** `resume`, `init`, `finetune`, `merge`, `distill`, or `artifact` for the run that stored an artifact. */
  how: string | null;
  checkpoint_path: string | null;
  /** Whether the run is in the log folders. */
  is_here: boolean;
  /** The number of runs in between. A run follows the one that it is the parent, or a child, of. */
  depth: number;
}

/** All metrics of a run, in order of first appearance. */
export interface MetricsPage {
  version: string;
  /** Fraction of the journal read so far, 0 to 1. */
  indexed: number;
  metrics: MetricView[];
}

/** A summary of one metric. `low` and `high` cover finite values only. */
export interface MetricView {
  name: string;
  kind: string;
  count: number;
  /** What it measures under any of its usual names: `loss`, `val_loss`, `lr`, `grad_norm`, `step_s`, … */
  signal: string | null;
  /** The metric that has the same values under its usual name; this one need not be shown. */
  same_as: string | null;
  last: Num | null;
  last_step: number | null;
  low: number | null;
  high: number | null;
  num_not_finite: number;
  /** The metric that the training code chose as the x axis of its chart, as with W&B's `define_metric`. */
  x_metric: string | null;
  /** Whether the script only printed it, and its values were read from the output. */
  is_printed: boolean;
}

/** The points of several metrics. */
export interface SeriesPage {
  version: string;
  /** Fraction of the journal read so far, 0 to 1. */
  indexed: number;
  /** Send this as `after` to get only newer points. */
  cursor: string;
  /** True if this is the complete range; false if the points continue an earlier response. */
  is_whole: boolean;
  /** Unix time at which the run started. */
  start: number;
  series: SeriesView[];
}

/** The points of one metric in the requested range. */
export interface SeriesView {
  name: string;
  /** The most recent value, even if it lies outside the range. */
  last: Num | null;
  /** One line per attempt and stream. */
  lines: Line[];
  /** Values that are NaN or infinite. */
  marks: Mark[];
  /** Why there are no points: the run lacks the metric, or what the x axis needs. */
  reason: string | null;
  /** Number of points of the run that are left out because the metric on the x axis has no value at or before them. */
  num_unplaced: number;
}

/** The points of one line, all of one attempt. */
export interface Line {
  stream: string;
  attempt: number;
  x: number[];
  /** None where the line is interrupted by a NaN or infinite value. */
  y: (number | null)[];
  mean_x: number[];
  mean_y: number[];
  /** Number of points in each mean, taken over equal intervals; all empty if `x` and `y` have every point or `x`
decreases somewhere, which it can if it is a metric. */
  mean_count: number[];
  /** The number of recorded points in the view. */
  num_points: number;
}

/** A position with NaN or infinite values. */
export interface Mark {
  x: number;
  kind: string;
  count: number;
}

/** The metrics of several runs. Runs of a sweep have the same ones, so each is listed once. */
export interface RunsMetricsPage {
  metrics: MetricFacts[];
  runs: MetricsOfRun[];
}

/** A metric without its values; see `MetricView` for the fields. */
export interface MetricFacts {
  name: string;
  kind: string;
  signal: string | null;
  same_as: string | null;
  x_metric: string | null;
  is_printed: boolean;
}

/** The metrics of one run. */
export interface MetricsOfRun {
  run: string;
  /** Indexes into the metrics of the page, in order of first appearance. */
  metrics: number[];
  /** Fraction of the journal read so far, 0 to 1. */
  indexed: number;
  /** Whether it has pictures, tables or other media in the part of the journal that was read. */
  has_media: boolean;
  exists: boolean;
  /** Why the run could not be read; null if it was. */
  reason: string | null;
}

/** The points of several runs, in the order of the request. */
export interface OverlayPage {
  runs: RunSeries[];
  /** The approximate maximum number of points per line. */
  points: number;
}

/** The points of one run. */
export interface RunSeries {
  run: string;
  /** Changes whenever a record is added. */
  version: string;
  /** Fraction of the journal read so far, 0 to 1. */
  indexed: number;
  /** Unix time at which the run started. */
  start: number;
  series: SeriesView[];
  /** Why the run could not be read; null if it was. */
  reason: string | null;
}

/** The groups, the largest first. */
export interface GroupedSeriesPage {
  /** The fields that the runs were grouped by; for `config`, the keys in which they differ. */
  by: string[];
  groups: SeriesGroup[];
  /** Why a run has no points, by its name: it does not exist, lacks the metric, or what the x axis needs. */
  reasons: Record<string, string>;
  /** Fraction of the runs whose journals and configs were read, 0 to 1. */
  indexed: number;
}

/** Runs that agree in the fields. */
export interface SeriesGroup {
  /** The value of each field of `by`. */
  key: Json[];
  /** The fields and their values as text. */
  label: string;
  runs: string[];
  /** How many of the runs have points of the metric in the range. */
  num_with_points: number;
  lines: GroupLine;
  /** Why there is no mean although there are points: the metric on the x axis goes up and down in a run. */
  reason: string | null;
}

/** Mean and range of the runs of a group, as parallel lists.

    `x` has positions that runs recorded, at least two of them unless only one run of the group has points. */
export interface GroupLine {
  x: number[];
  mean: number[];
  min: number[];
  max: number[];
  /** The number of runs with a value at each position. */
  count: number[];
}

/** The spans between two times, as parallel lists. */
export interface SpanView {
  names: string[];
  /** Index into `names`. */
  name: number[];
  id: string[];
  /** Index of the parent span, or -1 if it is not in the view. */
  parent: number[];
  start: number[];
  /** None for an open span. */
  duration_s: (number | null)[];
  depth: number[];
  status: string[];
  attempt: number[];
  heaps: SpanCluster[];
  /** The number of spans in the view, including those in clusters (`heaps`). */
  num_spans: number;
  /** The number of spans of the run that were not stored, because there were too many. */
  num_left_out: number;
}

/** Several short spans of the same depth that start within the same pixel, shown as one. */
export interface SpanCluster {
  start: number;
  end: number;
  depth: number;
  count: number;
  total_s: number;
  /** The name of the longest span. */
  name: string;
}

/** The records of one span. */
export interface SpanDetail {
  /** The span's own records and the events inside it, in order. */
  records: JournalRecord[];
}

/** Records, newest first, without points and spans. The server keeps the last 1,000 records of each kind. */
export interface RecordsPage {
  version: string;
  /** Number of records in the journal by kind. */
  num_records: Record<string, number>;
  /** Routine events omitted from `records`. */
  num_left_out: number;
  records: JournalRecord[];
}

/** The alerts of a run. Long texts and large evidence are shortened; the journal has them in full. */
export interface AlertsPage {
  version: string;
  num_open: number;
  /** Open alerts that are critical. */
  num_critical: number;
  /** Alerts omitted from `alerts`, because there are too many. */
  num_left_out: number;
  /** Open alerts first, most severe first; then closed alerts, newest first. */
  alerts: AlertView[];
}

/** One alert: a rule's finding, from opened to resolved. */
export interface AlertView {
  id: string;
  rule: string;
  /** The highest severity the alert reached. */
  severity: "critical" | "info" | "warning";
  title: string;
  message: string;
  /** What the finding usually means. */
  meaning: string;
  /** Common remedies. */
  advice: string[];
  /** Values, window and steps from the latest record; `metric` names the affected metric, if any. */
  evidence: JsonObject;
  /** The latest recurrences while the alert was open. */
  occurrences: JsonObject[];
  num_occurrences: number;
  attempt: number;
  opened_time: number | null;
  opened_step: number | null;
  updated_time: number | null;
  updated_step: number | null;
  resolved_time: number | null;
  resolved_step: number | null;
  /** Why the alert was resolved. */
  outcome: string;
  /** What caused the fault, if a dump shows it; the page of dumps has the evidence. */
  cause: DumpCause | null;
  /** False once the alert is resolved, or once the run resumes after its attempt ended. */
  is_open: boolean;
  /** Whether a person called the alert right or wrong: the annotation `alert.<rule>@<opened_step>`. */
  judgement: "" | "right" | "wrong";
}

/** The cause of a fault, as far as the evidence shows it. */
export interface DumpCause {
  /** A word for the cause, such as `activation_overflow`. */
  kind: string;
  text: string;
  confidence: "certain" | "likely" | "possible";
}

/** The dumps of a run, oldest first. */
export interface DumpsPage {
  version: string;
  dumps: DumpView[];
}

/** Evidence that a run captured when something went wrong. */
export interface DumpView {
  name: string;
  /** The rule of an alert, or `exception`, `hang`, `out_of_memory` and the like. */
  reason: string;
  step: number | null;
  time: number;
  rank: number;
  alert_id: string | null;
  cause: DumpCause | null;
  size_bytes: number;
  parts: string[];
  /** The parts that are missing, and why. */
  problems: string[];
}

/** One dump with its parts by name. Long lists are shortened; the files have them in full. */
export interface DumpDetail {
  dump: DumpView;
  content: JsonObject;
}

/** Sampled prompts and completions, newest first. */
export interface CompletionsPage {
  version: string;
  /** The run's tables, in order of first appearance. */
  tables: string[];
  /** All columns of the table. A row omits the columns it has no value for. */
  columns: string[];
  rows: JsonObject[];
  /** True if `rows` holds every match; false if older rows were omitted or not searched. */
  is_whole: boolean;
  /** The steps that have rows, ascending; thinned out if there are very many. */
  steps: number[];
  /** Number of rows in the table. */
  num_rows: number;
  /** Number of rows in the requested steps, regardless of the search. */
  num_rows_of_steps: number;
  /** Rows dropped before they were recorded, because the buffer was full. */
  num_dropped: number;
}

/** The controls of a run, and the answers to earlier requests. */
export interface ControlsPage {
  version: string;
  /** Whether a training process accepts requests. */
  is_open: boolean;
  /** Why the run accepts no requests from this server, although it may be running. */
  problem: string | null;
  controls: ControlView[];
  /** Actions that can be requested in addition to values, such as `checkpoint_now`. */
  requests: string[];
  /** Newest first. */
  answers: ControlAnswer[];
  /** Applied changes, newest first. */
  changes: JournalRecord[];
}

/** A value that can be changed while the run is training. */
export interface ControlView {
  name: string;
  kind: "bool" | "float" | "int";
  value: number | boolean | null;
  /** The value that the training code started with; it can be requested even if it is out of range. */
  initial: number | boolean | null;
  min: number | null;
  max: number | null;
}

/** The training process's answer to a control request. */
export interface ControlAnswer {
  /** The id of the request. */
  id: string | null;
  control: string;
  status: string;
  time: number;
  value: Json;
  reason: string | null;
  /** Seconds until a pending request is applied. */
  wait_s: number | null;
}

/** The differences between two runs. */
export interface RunPairDiff {
  runs: string[];
  config: Difference[];
  git: Difference[];
  packages: Difference[];
  /** Environment variables, the interpreter, seeds and switches, and facts about the machine. */
  environment: Difference[];
  code: CodeChange[];
  /** What could not be compared, and why. */
  notes: string[];
}

/** A value that differs; null where a run lacks it. */
export interface Difference {
  name: string;
  first: Json;
  second: Json;
}

/** A file that differs. */
export interface CodeChange {
  path: string;
  kind: "added" | "changed" | "removed";
  /** A unified diff; empty if the file is too large to compare. */
  diff: string;
  /** Whether the uncommitted changes of the file are compared, because the file itself was not stored. */
  is_patch: boolean;
}

/** Whether the runs differ. */
export interface ComparisonPage {
  /** The share of the journals that has been read, with those the noise is learned from; ask again until it is 1. */
  indexed: number;
  /** Null until the compared runs have been read. */
  report: ComparisonReport | null;
  /** The same quantities in words. */
  lines: VerdictLine[];
  /** The spread between runs of each quantity, and whether it was assumed, observed or learned from earlier runs. */
  noise: string;
}

/** The result of comparing two groups of runs; `a` is the one to compare with. */
export interface ComparisonReport {
  schema: number;
  /** Which runs are judged against which: every verdict and difference is about the first ones. */
  direction: string;
  a: ComparedGroup;
  b: ComparedGroup;
  headline: string;
  /** What matters more than any number: a run that failed, NaN, or a run that ended early. */
  first: string[];
  /** What makes the runs comparable, or not. */
  comparable: string;
  metrics: MetricVerdict[];
  config_diff: ConfigChange[];
  num_more_changes: number;
  warnings: string[];
  /** Whether a run of the second group failed. */
  has_failed: boolean;
  /** The compared parts, if they were not two groups of whole runs. */
  basis: string;
}

/** The runs of a group. */
export interface ComparedGroup {
  runs: string[];
  /** A name for the group; by default the name of its first run. */
  name: string;
  commits: string[];
  states: string[];
}

/** One quantity: its levels in both groups, their difference and the verdict. */
export interface MetricVerdict {
  name: string;
  title: string;
  unit: "" | "bytes" | "max_difference" | "ratio" | "seconds" | "share";
  a: number | null;
  b: number | null;
  /** The relative difference: 0.05 means that the second group is 5 % higher; without a sign if the unit says so. */
  effect: number | null;
  low: number | null;
  /** The interval of the effect. */
  high: number | null;
  confidence: number | null;
  verdict: "" | "better" | "different" | "equal" | "faster" | "identical" | "identical_until" | "less" | "more" | "not_comparable" | "rounding" | "slower" | "unknown" | "worse";
  runs_a: number;
  runs_b: number;
  /** The spread between runs that was assumed or observed. */
  noise: number | null;
  noise_source: string;
  /** How many runs per group, or how many repeats of another kind, would probably settle it. */
  runs_needed: number | null;
  repeats: "pairs" | "quads" | "runs per side";
  /** From which step on the groups differ. */
  onset_step: number | null;
  /** Why there is no verdict. */
  reason: string;
  notes: string[];
  /** Whether the effect is a ratio. Values below 0 are compared by their difference, in ranges of the first run. */
  is_relative: boolean;
}

/** A config key that differs: its values in both groups, in order of appearance. */
export interface ConfigChange {
  name: string;
  first: Json[];
  second: Json[];
}

/** A quantity, as text to show. */
export interface VerdictLine {
  name: string;
  title: string;
  before: string;
  after: string;
  difference: string;
  verdict: string;
  /** `good`, `bad`, `same`, `open`, or empty if the quantity is only reported. */
  sign: string;
  notes: string[];
}

/** The ranks of a distributed run; none for a run of one process. */
export interface RanksPage {
  version: string;
  num_ranks: number;
  num_by_state: Record<string, number>;
  /** Failed ranks first, then silent ones, then the slowest. */
  ranks: RankRow[];
  /** Where ranks hung, the rarest place first. */
  stacks: RankStacks[];
}

/** One rank in its last attempt. */
export interface RankRow {
  rank: number;
  state: string;
  host: string | null;
  local_rank: number | null;
  /** Its position in the mesh of the job, such as ``{"data": 3, "pipeline": 1}``. */
  mesh: Record<string, number>;
  pid: number | null;
  num_iterations: number | null;
  /** How long an iteration takes in its last window. */
  mean_iteration_s: number | null;
  /** How much of that is its own work, free of waiting for other ranks. */
  own_s: number | null;
  /** The rest, in which it may have waited for other ranks. */
  wait_s: number | null;
  /** The usual own time of all ranks divided by the one of this rank: below 0.93 it is slow. */
  score: number | null;
  /** What it is doing, while it runs. */
  phase: string | null;
  /** Since when, as a wall time. */
  phase_since: number | null;
  /** The function of `torch.distributed` that it is in. */
  collective: string | null;
  /** The innermost line of the program itself. */
  location: string | null;
  /** The first line of its last error, or why it ended. */
  error: string | null;
}

/** Ranks that hung in the same place. */
export interface RankStacks {
  num_ranks: number;
  /** The first hundred of them. */
  ranks: number[];
  /** The stack of the main thread, innermost call last. */
  lines: string[];
}

/** The traces of a run, newest first. Request one with the control `profile_steps`. */
export interface TracesPage {
  version: string;
  traces: TraceView[];
}

/** A stored trace of the PyTorch profiler. */
export interface TraceView {
  /** File name; use it to download the trace. */
  name: string;
  /** When the trace was stored. */
  time: number;
  first_step: number;
  num_steps: number;
  size_bytes: number;
  /** Duration of the profiled steps. */
  duration_s: number | null;
}

/** The names of a run's media and histograms, in order of appearance. */
export interface MediaPage {
  version: string;
  media: MediaNameView[];
  histograms: HistogramName[];
  /** Whether all names are listed. */
  is_whole: boolean;
  /** How much of the journal has been read, 0 to 1; the page covers that part. */
  indexed: number;
}

/** The media of one name, without the items. */
export interface MediaNameView {
  name: string;
  /** `image`, `video`, `audio`, `points`, `text`, `markdown`, `html`, `plotly`, `table`, `confusion_matrix`,
`pr_curve`, `file` or another kind. */
  kind: string;
  /** The steps with items, ascending; thinned out if there are very many. */
  steps: number[];
  num_steps: number;
  num_items: number;
  num_dropped: number;
  /** The latest steps at which items were dropped. */
  gaps: MediaGap[];
}

/** Items that were dropped instead of being stored. */
export interface MediaGap {
  step: number;
  num_dropped: number;
  reason: string;
}

/** A histogram that was logged at several steps. */
export interface HistogramName {
  name: string;
  num_steps: number;
}

/** Media of one name, newest first. */
export interface MediaItemsPage {
  version: string;
  records: MediaRecordView[];
  /** True if `records` has every match; false if older ones were omitted. */
  is_whole: boolean;
}

/** The media of one name at one step. */
export interface MediaRecordView {
  step: number;
  time: number | null;
  kind: string;
  items: JsonObject[];
  num_dropped: number;
  /** Why items were dropped. */
  reason: string;
}

/** A metric at the steps that have media of one name. */
export interface MediaMetricPage {
  version: string;
  /** The steps with media, ascending; thinned out if there are very many. */
  steps: number[];
  /** For each step, the latest value of the metric that was recorded until then; null if there was none yet. */
  values: (Num | null)[];
  /** The first step with the best finite value; null if there is none. */
  best_step: number | null;
  /** Whether the lowest value is best, by the name of the metric; also true if the name does not tell. */
  is_lower_better: boolean;
}

/** One histogram over steps, oldest first. */
export interface HistogramsPage {
  version: string;
  name: string;
  histograms: RecordedHistogram[];
  /** Number of steps that have it; `histograms` may have fewer of them, evenly spaced. */
  num_steps: number;
}

/** The distribution of some values at one step. */
export interface RecordedHistogram {
  step: number;
  time: number | null;
  /** The edges of the bins, one more than `counts`; empty, like `counts`, if there were no finite values. */
  edges: number[];
  counts: number[];
  /** The number of values in the bins. */
  num_values: number;
  /** The number of NaN and infinite values, which are in no bin. */
  num_not_finite: number;
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  /** Whether only a part of the values was counted. */
  is_sampled: boolean;
  /** Whether only the part of a distributed tensor was counted that rank 0 has. */
  is_shard: boolean;
}

/** Rows of a table that is stored in a file. */
export interface TableRowsPage {
  rows: JsonObject[];
  /** Number of rows that can be read. */
  num_rows: number;
  /** Whether the file could be read to its end. */
  is_whole: boolean;
}

/** Versions of artifacts, by name, newest first. */
export interface ArtifactsPage {
  artifacts: ArtifactView[];
  /** False if there are more; ask for one name. */
  is_whole: boolean;
}

/** A version of an artifact. */
export interface ArtifactView {
  name: string;
  /** `v0`, `v1` and so on. A team's server numbers the versions of a project in the order in which they arrive. */
  version: string;
  /** The project on a team's server; empty for the log folder itself. */
  project: string;
  /** SHA-256 of the list of files; the same on every machine. */
  digest: string;
  type: string;
  description: string | null;
  metadata: JsonObject;
  num_files: number;
  size_bytes: number;
  /** The run that logged it first. */
  run_id: string | null;
  run_name: string | null;
  /** When it was logged, in seconds since the epoch. */
  time: number;
  aliases: string[];
}

/** A version, and a part of its files in the order of their paths. */
export interface ArtifactDetail {
  artifact: ArtifactView;
  files: ArtifactFileView[];
}

/** A file of an artifact. */
export interface ArtifactFileView {
  path: string;
  size_bytes: number;
  /** Empty for a `url` that was not read. */
  sha256: string;
  /** Where the content lies, if it is not stored. */
  url: string | null;
}

/** The console output of a program under `tacho run`, with secrets masked. */
export interface OutputPage {
  /** Changes with the output; empty if none was recorded. */
  version: string;
  /** The lines that are kept, in order. Those between two ranges were deleted to make room for newer ones. */
  ranges: OutputRange[];
  /** The requested lines; fewer if they are very long. */
  rows: OutputRow[];
  /** Lines that are not complete yet, such as a progress bar. */
  partial: OutputRow[];
  /** How many lines contain the text searched for. */
  num_matches: number;
  /** Their numbers; the newest ones if there are very many. */
  matches: number[];
}

/** Consecutive lines. */
export interface OutputRange {
  /** The number of the first line. */
  first: number;
  /** The number after the last line. */
  end: number;
}

/** A line that the program printed. */
export interface OutputRow {
  /** Counted from the start of the run. Lines that were not kept count, too. */
  number: number;
  time: number | null;
  /** `stdout`, `stderr`, `output` if both went to the same place, or `notice` for a remark of Tachograph. */
  stream: string;
  text: string;
}

/** The request was written to the control file. The answer will carry the same id. */
export interface RequestIds {
  /** Request id by control name. */
  ids: Record<string, string>;
}

/** New values by control name; `true` for `checkpoint_now`, `dump_now` and `stop`, a number for `profile_steps`. */
export interface ControlRequest {
  values: Record<string, boolean | number>;
}

/** The runs that match, in order, from `offset` on. */
export interface TablePage {
  columns: TableColumn[];
  rows: TableLine[];
  num_matching: number;
  /** The number of all runs, also archived ones. */
  num_runs: number;
  /** If the expression is invalid there are no rows; an unknown field is reported here, too. */
  problems: QueryProblem[];
  /** The share of runs whose fields are all known; ask again while it is below 1. */
  indexed: number;
}

/** A column of the table. */
export interface TableColumn {
  field: string;
  kind: "bool" | "bytes" | "duration" | "list" | "number" | "share" | "text" | "time";
  /** -1 if lower values are better, 1 if higher ones are, 0 if unknown. */
  direction: number;
  /** The run with the best value, among all that match. */
  best: string | null;
  /** Whether runs that match differ in this field. */
  differs: boolean;
  /** The lowest finite number, among all runs that match. */
  low: number | null;
  high: number | null;
}

/** A run of the table. */
export interface TableLine {
  name: string;
  state: RunState;
  /** One value per column. NaN and infinities are strings, as in the journal. */
  values: Json[];
  /** How many runs of all were started before this one; charts choose its colour by it. */
  place: number;
}

/** Something wrong with the expression or a column. */
export interface QueryProblem {
  /** What was expected, or which names are similar to an unknown one. */
  message: string;
  /** The offset in the expression; null if it is about a column. */
  position: number | null;
}

/** The groups, the largest first. */
export interface TableGroupsPage {
  /** The fields that the groups differ in. */
  by: string[];
  columns: string[];
  groups: TableGroup[];
  problems: QueryProblem[];
  indexed: number;
}

/** Runs that agree in some fields. */
export interface TableGroup {
  /** One value per field. */
  key: Json[];
  runs: string[];
  /** One per column. */
  cells: GroupCell[];
}

/** The values of a column over the runs of a group. */
export interface GroupCell {
  num_values: number;
  mean: number | null;
  /** The standard deviation between runs; null for fewer than two. */
  spread: number | null;
  best: number | null;
  best_run: string | null;
}

/** All fields that some of the runs have: facts, then config and results, then metrics with their aggregates. */
export interface FieldsPage {
  fields: FieldView[];
  /** The aggregates of a metric; `fields` has each metric with `last` only. `METRIC@STEP` is its value at a step. */
  aggregates: string[];
  indexed: number;
}

/** A field that can be a column or part of an expression. */
export interface FieldView {
  field: string;
  kind: "bool" | "bytes" | "duration" | "list" | "number" | "share" | "text" | "time";
  /** The number of runs that have it. */
  num_runs: number;
  /** Whether runs differ in it; a missing value differs from any other. */
  differs: boolean;
  /** Whether runs that have it differ in it. */
  varies: boolean;
  /** Whether it is a config key that only tells runs apart: a name, a path, a port, a time, a seed or a device. */
  is_label: boolean;
  /** Its texts, the most frequent first, if there are at most 20 different ones; of a list, its items. */
  values: string[];
}

/** How runs differ, beside their results. */
export interface DiffPage {
  runs: DiffRun[];
  config: DiffKey[];
  /** The number of config keys in which all runs agree. */
  num_equal: number;
  /** The number of config keys that differ, but do not describe the training. */
  num_ignored: number;
  results: DiffResult[];
  /** The metrics that some run has. */
  metrics: string[];
  git: Variation[];
  packages: Variation[];
  environment: Variation[];
  files: FileVersions[];
  /** What could not be compared, and why. */
  notes: string[];
  /** The number of runs that match the filter; more than are returned if they are too many. */
  num_matching: number;
  /** Named runs that do not exist. */
  missing: string[];
  /** The share of runs whose summary is known; ask again if it is below 1. */
  indexed: number;
}

/** One of the runs of a diff. */
export interface DiffRun {
  name: string;
  /** The name that people gave it, or else the same name. */
  title: string;
  state: RunState;
  /** Whether uncommitted changes were captured; only known if code was compared. */
  has_patch: boolean;
}

/** A config key; nested keys are joined by dots. */
export interface DiffKey {
  name: string;
  /** The value of each run; null where a run lacks it. */
  values: Json[];
  differs: boolean;
  /** Whether it differs, but does not describe the training: run names, output paths, times, ports and the like. */
  is_ignored: boolean;
}

/** A result of each run. */
export interface DiffResult {
  field: string;
  /** -1 if lower is better, 1 if higher is better, 0 if unknown. */
  direction: number;
  /** The run with the best finite value; null if the direction is unknown or there is only one run. */
  best: string | null;
  /** The value of each run; null where a run lacks it. */
  values: Json[];
}

/** A name and its value in each of several runs, in their order; null where a run lacks it. */
export interface Variation {
  name: string;
  values: Json[];
}

/** A source file that differs between runs. */
export interface FileVersions {
  path: string;
  /** For each run the number of its version, in the order of appearance from 1; null where a run lacks the file. */
  versions: (number | null)[];
}

/** Which config keys go with a result. */
export interface ImportancePage {
  ranking: KeyRanking;
  /** -1 if lower results are better, 1 if higher ones are, 0 if unknown. */
  direction: number;
  num_matching: number;
  /** Named runs that do not exist. */
  missing: string[];
  indexed: number;
}

/** The config keys that vary, by the share of a result that they explain. */
export interface KeyRanking {
  field: string;
  /** The number of runs with a finite result. */
  num_runs: number;
  num_missing: number;
  /** Results so far off the others that they count as closer ones. */
  num_clipped: number;
  /** The share of the variance that all keys explain of runs that the model has not seen; null if it is not known. */
  explained_share: number | null;
  /** The largest share first; empty if there is no ranking. */
  keys: KeyImportance[];
  not_ranked: UnrankedKey[];
  /** Why there is no ranking, or null if there is one. */
  reason: string | null;
}

/** The share of the variance of a result that a config key explains. */
export interface KeyImportance {
  key: string;
  /** The number of runs that have it. */
  num_runs: number;
  /** What it explains alone and in pairs with others; pairs count for both keys. */
  share: number;
  /** The lower end of the 95 % interval of the share; 0 if an effect is not certain. */
  low: number;
  high: number;
  /** What it explains by itself. */
  alone: number;
  /** The largest first. */
  pairs: PairShare[];
  /** Other keys that vary together with this one: the share is theirs in common. */
  together: string[];
}

/** What a key explains only together with another one: the best value of each depends on the other. */
export interface PairShare {
  key: string;
  share: number;
}

/** A config key that varies, but is not ranked. */
export interface UnrankedKey {
  key: string;
  reason: string;
}

/** What people said about a run, next to its journal. */
export interface AnnotationsView {
  /** Fields that are set: `display_name`, `note`, `archived`, `group`, `project`, `rating`, `color`, `pinned`,
`custom.*`, and `alert.*` with judgements of alerts. */
  values: JsonObject;
  /** The tags of the training code and those added later, without those removed. */
  tags: string[];
  marks: MarkView[];
}

/** A remark about a step. */
export interface MarkView {
  id: string;
  global_step: number;
  text: string;
  by: string;
  time: number;
}

/** The annotations after the changes. */
export interface AnnotationResult {
  annotations: AnnotationsView;
  /** Changes that undo this one. */
  undo: AnnotationChange[];
}

/** One change of the annotations of a run. */
export interface AnnotationChange {
  /** Set a field; add or remove a tag; add a remark about a step, or remove it by its id. */
  op: "add" | "mark" | "remove" | "set" | "unmark";
  field: string;
  /** The value, the tag, or the id of the remark to remove; null resets a field. */
  value: Json;
  global_step: number | null;
  text: string;
  /** Repeating a change with the same id has no further effect. */
  id: string | null;
}

/** Changes of the annotations of a run. */
export interface AnnotationRequest {
  changes: AnnotationChange[];
}

/** The result for each run; a failure does not stop the others. */
export interface BulkResult {
  results: RunResult[];
  num_failed: number;
}

/** What happened to one run. */
export interface RunResult {
  run: string;
  /** Why it failed; null if it succeeded. */
  error: string | null;
  /** The name of a restored run, or the id in the trash of a removed one. */
  name: string | null;
  undo: AnnotationChange[];
}

/** An action on several runs, given by name or by an expression. */
export interface BulkRequest {
  action: "annotate" | "restore" | "trash";
  /** At most 500, because a body has at most 64 KiB; ask again for the rest, or use `filter`. */
  runs: string[];
  /** Instead of `runs`: all runs that match, also archived ones. Not for `restore`. */
  filter: string | null;
  /** For `annotate`. */
  changes: AnnotationChange[];
  /** For `trash`: also runs that may still be recorded on another machine. */
  force: boolean;
}

/** The saved views, by name. */
export interface ViewsPage {
  views: ViewDetail[];
}

/** A saved view, and all other keys that its file has. */
export interface ViewDetail {
  slug: string;
  name: string;
  filter: string;
  columns: string[];
  sort: string;
  group: string[];
  archived: "all" | "no" | "only";
  /** Whether columns in which all runs agree are left out. */
  only_differing: boolean;
  pinned_columns: string[];
  pinned_runs: string[];
  charts: Json[];
  colors: JsonObject;
  x: string;
  /** Keys that are unknown to this version or have wrong values; the rest of the view works. */
  problems: string[];
}

/** A view to save. Other keys are stored, too. */
export interface ViewRequest {
  /** The name to show; by default the slug. */
  name: string;
  /** The expression that selects runs. */
  filter: string;
  columns: string[];
  /** A field to sort by; a minus in front means highest first. */
  sort: string;
  /** The fields to group by. */
  group: string[];
  archived: "all" | "no" | "only";
  /** Whether columns in which all runs agree are left out. */
  only_differing: boolean;
  pinned_columns: string[];
  pinned_runs: string[];
  /** The charts of the view, in the form that the dashboard gives them. */
  charts: Json[];
  /** The colors of the view, in the form that the dashboard gives them. */
  colors: JsonObject;
  /** The axis of the charts. */
  x: string;
}

/** Who makes a request. On a private dashboard, the name is empty and everything is allowed. */
export interface Whoami {
  name: string;
  id: string;
  scopes: string[];
  /** The only project that the key gives access to; null for all. */
  project: string | null;
  expires: number | null;
  /** The version of the server. */
  server: string;
}

/** The removed runs, latest first. */
export interface TrashPage {
  runs: TrashedRun[];
}

/** The manifest of a run in the trash. */
export interface TrashedRun {
  id: string;
  /** Its name before it was removed, relative to the log folder. */
  name: string;
  removed: number;
  by: string;
  size_bytes: number;
}

/** The body of every error response. */
export interface ErrorBody {
  error: ErrorDetail;
}

/** Why a request failed. */
export interface ErrorDetail {
  /** A stable identifier for programs, such as `not_found`. */
  code: string;
  /** An explanation for people: the problem and how to fix it. */
  message: string;
}

/** How to log in to this server. */
export interface LoginForm {
  /** The token that the server printed at startup, or an access key of a team's server. */
  needs: "access_key" | "token";
}

/** The token that the server printed at startup, or an access key of a team's server. */
export interface LoginRequest {
  token: string;
}

/** Nothing: the cookie says who logs out. */
export interface LogoutRequest {
}

/** A run changed. */
export interface RunChanged {
  line: RunSummary;
  /** The run's current version; only set for runs watched by name. */
  version: string | null;
  /** Fraction of the journal read so far, 0 to 1; only set for runs watched by name. */
  indexed: number | null;
  /** Changes with the console output; only set for runs watched by name. */
  output: string | null;
  /** How far a team's server has received the run; only set for runs watched by name. */
  copy: CopyView | null;
  /** The server's clock, in Unix time. */
  now: number;
}

/** A run no longer exists. */
export interface RunGone {
  name: string;
}

/** Sent when nothing has changed for a while, so that a client can tell a quiet stream from a broken one. */
export interface StreamAlive {
  /** The server's clock, in Unix time. */
  now: number;
}

/** The API's routes, by method and path. */
export interface Routes {
  /** Check that the server is up. */
  "GET /healthz": {
    path: {};
    query: {};
    body: null;
    response: ServerHealth;
  };
  /** List the runs, newest first. */
  "GET /api/v1/runs": {
    path: {};
    query: {};
    body: null;
    response: RunsPage;
  };
  /** Return a run's config, attempts, goodput and environment. */
  "GET /api/v1/runs/{run}": {
    path: { run: string };
    query: {};
    body: null;
    response: RunDetail;
  };
  /** Return the runs that a run started from, and the runs that started from it. */
  "GET /api/v1/runs/{run}/lineage": {
    path: { run: string };
    query: {};
    body: null;
    response: LineagePage;
  };
  /** List a run's metrics with their last, lowest and highest values. */
  "GET /api/v1/runs/{run}/metrics": {
    path: { run: string };
    query: {};
    body: null;
    response: MetricsPage;
  };
  /** Return the points of one or more metrics, downsampled so that every extreme is kept. */
  "GET /api/v1/runs/{run}/series": {
    path: { run: string };
    query: { name: string[]; x?: "epoch" | "relative" | "relative_step" | "samples" | "step" | "time" | "tokens" | "training_time" | null; x_metric?: string | null; low?: number | null; high?: number | null; points?: number | null; after?: string | null };
    body: null;
    response: SeriesPage;
  };
  /** List the metrics of several runs, without their values. */
  "GET /api/v1/metrics": {
    path: {};
    query: { run: string[] };
    body: null;
    response: RunsMetricsPage;
  };
  /** Return the points of one or more metrics of several runs; a run that has none states why. */
  "GET /api/v1/series": {
    path: {};
    query: { run: string[]; name: string[]; x?: "epoch" | "relative" | "relative_step" | "samples" | "step" | "time" | "tokens" | "training_time" | null; x_metric?: string | null; low?: number | null; high?: number | null; points?: number | null };
    body: null;
    response: OverlayPage;
  };
  /** Group runs; return mean and range of a metric in each group. */
  "GET /api/v1/series/groups": {
    path: {};
    query: { run: string[]; by: string[]; name: string; x?: "epoch" | "relative" | "relative_step" | "samples" | "step" | "time" | "tokens" | "training_time" | null; x_metric?: string | null; low?: number | null; high?: number | null; points?: number | null };
    body: null;
    response: GroupedSeriesPage;
  };
  /** Download every point of one or more metrics. */
  "GET /api/v1/runs/{run}/export": {
    path: { run: string };
    query: { name: string[]; format?: "csv" | "json" | null; x?: "epoch" | "relative" | "relative_step" | "samples" | "step" | "time" | "tokens" | "training_time" | null; low?: number | null; high?: number | null };
    body: null;
    response: null;
  };
  /** Return the spans in a time range. */
  "GET /api/v1/runs/{run}/spans": {
    path: { run: string };
    query: { low?: number | null; high?: number | null; points?: number | null; most?: number | null };
    body: null;
    response: SpanView;
  };
  /** Return the records of one span. */
  "GET /api/v1/runs/{run}/spans/{span}": {
    path: { run: string; span: string };
    query: {};
    body: null;
    response: SpanDetail;
  };
  /** Return the latest records of each kind: events, alerts, errors, checkpoints and so on. */
  "GET /api/v1/runs/{run}/records": {
    path: { run: string };
    query: { kind?: string[] | null; limit?: number | null; routine?: boolean | null };
    body: null;
    response: RecordsPage;
  };
  /** List the run's alerts; each appears once, with its whole life from opened to resolved. */
  "GET /api/v1/runs/{run}/alerts": {
    path: { run: string };
    query: {};
    body: null;
    response: AlertsPage;
  };
  /** List the evidence that the run captured when something went wrong, oldest first. */
  "GET /api/v1/runs/{run}/dumps": {
    path: { run: string };
    query: {};
    body: null;
    response: DumpsPage;
  };
  /** Return one dump: the last steps, the layers, the batch, stacks and so on. */
  "GET /api/v1/runs/{run}/dumps/{dump}": {
    path: { run: string; dump: string };
    query: { rank?: number | null };
    body: null;
    response: DumpDetail;
  };
  /** Return sampled prompts and completions, newest first. */
  "GET /api/v1/runs/{run}/completions": {
    path: { run: string };
    query: { step_min?: number | null; step_max?: number | null; search?: string | null; table?: string | null; limit?: number | null };
    body: null;
    response: CompletionsPage;
  };
  /** List the run's controls and the answers to earlier requests. */
  "GET /api/v1/runs/{run}/controls": {
    path: { run: string };
    query: {};
    body: null;
    response: ControlsPage;
  };
  /** Request new control values, a checkpoint, a trace or a stop. */
  "POST /api/v1/runs/{run}/controls": {
    path: { run: string };
    query: {};
    body: ControlRequest;
    response: RequestIds;
  };
  /** List the differences between two runs: config, git, packages, environment and code. */
  "GET /api/v1/runs/{run}/diff/{other}": {
    path: { run: string; other: string };
    query: {};
    body: null;
    response: RunPairDiff;
  };
  /** Judge whether runs differ from others in speed, memory and loss. */
  "GET /api/v1/compare": {
    path: {};
    query: { run: string[]; against: string[]; anyway?: boolean | null };
    body: null;
    response: ComparisonPage;
  };
  /** Download the uncommitted changes of the run's repository as a patch. */
  "GET /api/v1/runs/{run}/patch": {
    path: { run: string };
    query: {};
    body: null;
    response: null;
  };
  /** Return the worst ranks of a distributed run, and where ranks hung. */
  "GET /api/v1/runs/{run}/ranks": {
    path: { run: string };
    query: { limit?: number | null };
    body: null;
    response: RanksPage;
  };
  /** Return how much longer each rank took than the others, over time: a line of JSON, then a byte per cell. */
  "GET /api/v1/runs/{run}/ranks/heat": {
    path: { run: string };
    query: { quantity?: "data" | "own" | "wait" | null };
    body: null;
    response: null;
  };
  /** List the stored traces of the PyTorch profiler, newest first. */
  "GET /api/v1/runs/{run}/traces": {
    path: { run: string };
    query: {};
    body: null;
    response: TracesPage;
  };
  /** Download a trace; ui.perfetto.dev opens it. */
  "GET /api/v1/runs/{run}/traces/{trace}": {
    path: { run: string; trace: string };
    query: {};
    body: null;
    response: null;
  };
  /** List the names of a run's media and histograms, with their steps and counts. */
  "GET /api/v1/runs/{run}/media": {
    path: { run: string };
    query: {};
    body: null;
    response: MediaPage;
  };
  /** Return pictures, tables, text and other media of one name, newest first. */
  "GET /api/v1/runs/{run}/media/items": {
    path: { run: string };
    query: { name: string; step_min?: number | null; step_max?: number | null; limit?: number | null };
    body: null;
    response: MediaItemsPage;
  };
  /** Return a metric at the steps with media of one name, and the step at which it is best. */
  "GET /api/v1/runs/{run}/media/metric": {
    path: { run: string };
    query: { name: string; metric: string };
    body: null;
    response: MediaMetricPage;
  };
  /** Download the media of one name: all files, the pictures of a step as a sheet, or a prompt as an animation. */
  "GET /api/v1/runs/{run}/media/export": {
    path: { run: string };
    query: { name: string; format?: "png" | "webp" | "zip" | null; step?: number | null; prompt?: string | null };
    body: null;
    response: null;
  };
  /** Return a histogram at each step, or at steps that are evenly spaced. */
  "GET /api/v1/runs/{run}/media/histograms": {
    path: { run: string };
    query: { name: string; limit?: number | null };
    body: null;
    response: HistogramsPage;
  };
  /** Return rows of a large table, which is stored in a file. */
  "GET /api/v1/runs/{run}/media/tables/{sha256}": {
    path: { run: string; sha256: string };
    query: { offset?: number | null; limit?: number | null };
    body: null;
    response: TableRowsPage;
  };
  /** Return a stored file; pictures also scaled down. Only pictures, audio and video are shown by browsers. */
  "GET /api/v1/runs/{run}/media/blobs/{sha256}": {
    path: { run: string; sha256: string };
    query: { size?: 320 | null; table?: string | null; download?: boolean | null };
    body: null;
    response: null;
  };
  /** Return logged HTML or a plotly figure as a page for a sandboxed frame. */
  "GET /api/v1/runs/{run}/media/frames/{sha256}": {
    path: { run: string; sha256: string };
    query: {};
    body: null;
    response: null;
  };
  /** List the versions of artifacts. */
  "GET /api/v1/artifacts": {
    path: {};
    query: { name?: string | null; run?: string | null; project?: string | null };
    body: null;
    response: ArtifactsPage;
  };
  /** Return a version of an artifact with its files. */
  "GET /api/v1/artifacts/{name}": {
    path: { name: string };
    query: { version?: string | null; project?: string | null; offset?: number | null; limit?: number | null };
    body: null;
    response: ArtifactDetail;
  };
  /** Download a file of an artifact by the hash of its content. */
  "GET /api/v1/artifacts/{name}/files/{sha256}": {
    path: { name: string; sha256: string };
    query: { version: string; project?: string | null; file_name?: string | null };
    body: null;
    response: null;
  };
  /** Return lines of the console output of a program under `tacho run`, and search it. */
  "GET /api/v1/runs/{run}/output": {
    path: { run: string };
    query: { offset?: number | null; limit?: number | null; search?: string | null };
    body: null;
    response: OutputPage;
  };
  /** Download the console output. */
  "GET /api/v1/runs/{run}/output/text": {
    path: { run: string };
    query: {};
    body: null;
    response: null;
  };
  /** Return the runs that match an expression, with any of their fields, sorted. */
  "GET /api/v1/table": {
    path: {};
    query: { filter?: string | null; column?: string[] | null; sort?: string | null; limit?: number | null; offset?: number | null; archived?: "all" | "no" | "only" | null; pinned_first?: boolean | null; pin?: string[] | null };
    body: null;
    response: TablePage;
  };
  /** Download the same as CSV: the name of each run, then its columns, or without columns all facts. */
  "GET /api/v1/table.csv": {
    path: {};
    query: { filter?: string | null; column?: string[] | null; sort?: string | null; limit?: number | null; offset?: number | null; archived?: "all" | "no" | "only" | null; pinned_first?: boolean | null; pin?: string[] | null };
    body: null;
    response: null;
  };
  /** Group the runs that match an expression; return mean, spread and best of fields. */
  "GET /api/v1/table/groups": {
    path: {};
    query: { by: string[]; filter?: string | null; run?: string[] | null; column?: string[] | null; archived?: "all" | "no" | "only" | null };
    body: null;
    response: TableGroupsPage;
  };
  /** List the fields of the runs that match an expression; without one, of all runs. */
  "GET /api/v1/table/fields": {
    path: {};
    query: { filter?: string | null };
    body: null;
    response: FieldsPage;
  };
  /** List the differences between runs: config beside results, git, packages, environment and code. */
  "GET /api/v1/diff": {
    path: {};
    query: { run?: string[] | null; filter?: string | null; column?: string[] | null; all?: boolean | null; code?: boolean | null };
    body: null;
    response: DiffPage;
  };
  /** Rank the config keys that vary between runs by their rank correlation with a result. */
  "GET /api/v1/importance": {
    path: {};
    query: { run?: string[] | null; filter?: string | null; metric?: string | null };
    body: null;
    response: ImportancePage;
  };
  /** Return the name, note, tags and remarks that people gave a run. */
  "GET /api/v1/runs/{run}/annotations": {
    path: { run: string };
    query: {};
    body: null;
    response: AnnotationsView;
  };
  /** Change the annotations of a run. */
  "POST /api/v1/runs/{run}/annotations": {
    path: { run: string };
    query: {};
    body: AnnotationRequest;
    response: AnnotationResult;
  };
  /** Annotate several runs, move them to the trash, or restore them. */
  "POST /api/v1/bulk": {
    path: {};
    query: {};
    body: BulkRequest;
    response: BulkResult;
  };
  /** List the saved views of the table. */
  "GET /api/v1/views": {
    path: {};
    query: {};
    body: null;
    response: ViewsPage;
  };
  /** Return a saved view. */
  "GET /api/v1/views/{slug}": {
    path: { slug: string };
    query: {};
    body: null;
    response: ViewDetail;
  };
  /** Save a view, in place of the one with this slug if there is one. */
  "PUT /api/v1/views/{slug}": {
    path: { slug: string };
    query: {};
    body: ViewRequest;
    response: ViewDetail;
  };
  /** Delete a view and return it. */
  "DELETE /api/v1/views/{slug}": {
    path: { slug: string };
    query: {};
    body: null;
    response: ViewDetail;
  };
  /** Return the identity behind the request, and its scopes. */
  "GET /api/v1/whoami": {
    path: {};
    query: {};
    body: null;
    response: Whoami;
  };
  /** List removed runs. */
  "GET /api/v1/trash": {
    path: {};
    query: {};
    body: null;
    response: TrashPage;
  };
  /** Stream changes as server-sent events named `changed` (`RunChanged`) and `gone` (`RunGone`); a quiet stream sends `alive` (`StreamAlive`) every few seconds. */
  "GET /api/v1/live": {
    path: {};
    query: { run?: string[] | null; after?: string | null };
    body: null;
    response: null;
  };
  /** Return what to log in with. */
  "GET /api/v1/login": {
    path: {};
    query: {};
    body: null;
    response: LoginForm;
  };
  /** Exchange the token or access key for a cookie. */
  "POST /api/v1/login": {
    path: {};
    query: {};
    body: LoginRequest;
    response: null;
  };
  /** Remove the cookie. */
  "POST /api/v1/logout": {
    path: {};
    query: {};
    body: LogoutRequest;
    response: null;
  };
}
