/** The views of the table and of the workspace that were used last. An address without a view opens them again. */

import { readTable, type TableView, writeTable } from "./model/table-view";
import {
  lastingView,
  readWorkspace,
  type RunSelection,
  selectionOf,
  withSelection,
  type WorkspaceView,
  writeWorkspace,
} from "./model/workspace-view";
import { loadText, saveText } from "./storage";

const tableKey = "tacho-table-view";
const workspaceKey = "tacho-workspace-view";
const pinsKey = "tacho-pinned-charts";
const loadParameters = (key: string): URLSearchParams => new URLSearchParams(loadText(key) ?? "");

export const lastTable = (): TableView => readTable(loadParameters(tableKey));
export const lastWorkspace = (): WorkspaceView => readWorkspace(loadParameters(workspaceKey));

/** The last table with the runs of the workspace, for a switch from one to the other. */
export const tableOf = (selection: RunSelection): TableView => ({ ...lastTable(), ...selection });
export const workspaceOf = ({ filter, sort, archived, group }: RunSelection): WorkspaceView =>
  withSelection(lastWorkspace(), { filter, sort, archived, group });

/** Remember a view; the other page shows the same runs then. */
export function rememberTable(view: TableView): void {
  saveText(tableKey, writeTable(view).toString());
  saveText(workspaceKey, writeWorkspace(workspaceOf(view)).toString());
}

export function rememberWorkspace(view: WorkspaceView): void {
  saveText(workspaceKey, writeWorkspace(lastingView(view)).toString());
  saveText(tableKey, writeTable(tableOf(selectionOf(view))).toString());
}

/** The metrics that were pinned last on the page of a run: most runs of a project have the same ones. */
export const lastPins = (): string[] => loadParameters(pinsKey).getAll("pin");

export function rememberPins(names: string[]): void {
  saveText(pinsKey, new URLSearchParams(names.map((name) => ["pin", name])).toString());
}
