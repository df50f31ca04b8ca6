/** Dark or light: as the system says, until the user says otherwise. */

const key = "tacho-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

class Theme {
  name = $state<"dark" | "light">("light");

  constructor() {
    this.set(this.chosen() ?? (system.matches ? "dark" : "light"));
    system.addEventListener("change", () => {
      if (!this.chosen()) this.set(system.matches ? "dark" : "light");
    });
  }

  toggle(): void {
    const name = this.name === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(key, name);
    } catch {
      // a browser that keeps nothing: then it holds until the page is left
    }
    this.set(name);
  }

  private chosen(): "dark" | "light" | null {
    try {
      const kept = localStorage.getItem(key);
      return kept === "dark" || kept === "light" ? kept : null;
    } catch {
      return null;
    }
  }

  private set(name: "dark" | "light"): void {
    document.documentElement.dataset["theme"] = name;
    this.name = name;
  }
}

export const theme = new Theme();

/** A colour of the theme that is on. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
