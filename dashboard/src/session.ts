// The token lives in this tab's session storage: unlike a cookie it goes nowhere by itself, neither with requests that
// other sites make nor to other ports of this host, and it ends with the tab.

import { signal } from "@preact/signals";

const KEY = "pollux-token";

export const token = signal<string | null>(restore());

export function logIn(given: string): void {
  sessionStorage.setItem(KEY, given);
  token.value = given;
}

export function logOut(): void {
  sessionStorage.removeItem(KEY);
  token.value = null;
}

// A link may also be followed in a tab that is open already.
addEventListener("hashchange", () => {
  if (!location.hash.includes("token=")) return;
  token.value = restore();
  dispatchEvent(new HashChangeEvent("hashchange"));
});

/** Takes a token out of the address, where it must not stay, or the one that this tab had before. */
function restore(): string | null {
  const [route = "", given] = location.hash.split("token=");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", route.length > 1 ? route.replace(/[?&]$/, "") : location.pathname);
  }
  return sessionStorage.getItem(KEY);
}
