/** As many as can be told apart; `style/tokens.css` says which. */
const COLOURS = 12;
/** Plain, striped and dotted. */
const PATTERNS = 3;

/** A job looks the same wherever it is shown, and like no other of the 35 before and after it. */
export function jobLook(id: number) {
  const pattern = Math.floor(id / COLOURS) % PATTERNS;
  return { class: pattern === 0 ? "" : `pattern-${pattern}`, style: { backgroundColor: `var(--j${id % COLOURS})` } };
}
