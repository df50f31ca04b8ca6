/** Who uses the dashboard: on a private one its only user, on a team's server a key or an authenticated user. */

import { api, type LoginForm, type Whoami } from "./api";
import { allows, isTeam, missingScope, type Scope } from "./model/access";

class Session {
  who = $state.raw<Whoami | null>(null);
  /** What to log in with. */
  needs = $state<LoginForm["needs"]>("token");
  /** Why the token in the address was not accepted. */
  problem = $state("");
  isTeam = $derived(isTeam(this.who) || this.needs === "access_key");

  async load(): Promise<void> {
    this.who = await api.whoami();
  }

  /** Find out what to log in with. */
  async askForLogin(): Promise<void> {
    this.who = null;
    this.needs = (await api.getLoginForm()).needs;
  }

  async logOut(): Promise<void> {
    await api.logout();
    location.reload(); // nothing that the page has loaded stays in memory
  }

  allows(scope: Scope): boolean {
    return allows(this.who, scope);
  }

  /** Why something is not offered, as a tooltip; undefined if it is. */
  missing(scope: Scope): string | undefined {
    return missingScope(this.who, scope);
  }
}

export const session = new Session();
