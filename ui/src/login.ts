/**
 * Logs in with the token in the printed address, `/#token=…`, or with an access key at the same place.
 *
 * The browser does not send this part of an address, so the token reaches no log. It is exchanged for a cookie and
 * removed from the address at once, so that it can neither be shared by accident nor be seen over a shoulder.
 */

import { api, ApiError } from "./api";
import { session } from "./session.svelte";

/** A connection can break; the token is gone from the address then. */
const maxAttempts = 3;
const pauseMs = 500;

/** The token in the address, if there is one. */
const tokenInAddress = () => new URLSearchParams(location.hash.slice(1)).get("token");

export async function logInFromAddress(): Promise<void> {
  // Opening the address in a tab that already shows the page does not load the page again.
  addEventListener("hashchange", () => {
    if (tokenInAddress() !== null) location.reload();
  });
  const token = tokenInAddress();
  if (token === null) return;
  history.replaceState(null, "", location.pathname + location.search);
  for (let attempt = 0; attempt < maxAttempts; attempt++) {
    try {
      await api.login(token);
      return;
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 0) {
        session.problem = error instanceof Error ? error.message : String(error); // the page then asks for the token
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  }
}
