import { effect, signal } from "@preact/signals";

export type Theme = "light" | "dark";

const KEY = "pollux-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = signal<Theme | null>(stored());

export const theme = signal<Theme>("light");

/** Follows the system until somebody chooses. */
export function followTheme(): void {
  const apply = () => {
    theme.value = chosen.value ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme.value;
  };
  effect(apply);
  system.addEventListener("change", apply);
}

export function toggleTheme(): void {
  const other = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, other);
  chosen.value = other;
}

function stored(): Theme | null {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : null;
}

/** A colour of the design as it is now, for what is drawn on a canvas. */
export function colourOf(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
