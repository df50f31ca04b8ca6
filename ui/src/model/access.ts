/** What a person may do on a team's server. On a private dashboard, everything is allowed. */

import type { Whoami } from "../api";

export type Scope = "read" | "write" | "control" | "admin";

/** Whether the dashboard belongs to a team's server; a private one has no names. */
export const isTeam = (who: Whoami | null): boolean => who !== null && who.name !== "";

/** Whether a scope is granted; `admin` includes all. While it is unknown, the server decides. */
export const allows = (who: Whoami | null, scope: Scope): boolean =>
  who === null || !isTeam(who) || who.scopes.includes(scope) || who.scopes.includes("admin");

/** Why something cannot be done; undefined if it can. */
export const missingScope = (who: Whoami | null, scope: Scope): string | undefined =>
  who === null || allows(who, scope)
    ? undefined
    : `${who.id ? "The key" : "The user"} ${who.name} lacks the scope ${scope}.`;

/** The scopes and the project in a few words: `read, control · project nlp`. */
export const describeAccess = (who: Whoami): string =>
  [who.scopes.join(", "), who.project === null ? "" : `project ${who.project}`].filter(Boolean).join(" · ");
