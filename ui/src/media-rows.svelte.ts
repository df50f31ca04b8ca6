/** Loads the rows of a logged table: they are in its record, or in a file. */

import { untrack } from "svelte";
import { api } from "./api";
import { fileOf, type MediaItem, type TableRow } from "./model/media";

export const maxLoadedRows = 5_000;
const damaged = "The file of this table is damaged or too large; it is shown as far as it could be read.";

export class MediaRows {
  /** Null until they are loaded, and without a table. */
  rows = $state.raw<TableRow[] | null>(null);
  error = $state<string | null>(null);
  /** Of the file that has the rows; null if the record has them. */
  hash = $state<string | null>(null);

  /** Create it during a component's initialisation: it follows the table. */
  constructor(source: () => { run: string; item: MediaItem | null }) {
    const address = $derived.by(() => {
      const { run, item } = source();
      return item?.table && item.table.rows === null && item.file ? `${item.file.sha256} ${run}` : null;
    });
    $effect(() => {
      const { table } = source().item ?? {};
      if (table?.rows || address === null) [this.rows, this.hash, this.error] = [table?.rows ?? null, null, null];
    });
    $effect(() => {
      if (address === null) return;
      const { run, item } = untrack(source);
      const sha256 = fileOf(item?.file)?.sha256 ?? "";
      [this.rows, this.hash, this.error] = [null, sha256, null];
      let isClosed = false;
      api.getTableRows(run, sha256, { limit: maxLoadedRows }).then(
        (page) => {
          if (isClosed) return;
          this.rows = page.rows;
          if (!page.is_whole) this.error = damaged;
        },
        (reason: Error) => {
          if (!isClosed) this.error = reason.message;
        },
      );
      return () => (isClosed = true);
    });
  }
}
