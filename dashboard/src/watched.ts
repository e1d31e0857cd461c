// Whether somebody may be looking. Browsers allow few connections to a server over all of its tabs, so that those in the
// background must not hold any.

import { signal } from "@preact/signals";

/** Those who only look at another tab for a moment find everything as it was. */
const PATIENCE_MS = 5_000;

export const isWatched = signal(!document.hidden);

let leaving: ReturnType<typeof setTimeout> | undefined;

document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (!document.hidden) isWatched.value = true;
  else {
    leaving = setTimeout(() => {
      isWatched.value = false;
    }, PATIENCE_MS);
  }
});
