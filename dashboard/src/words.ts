// Commands as a shell would read and write them.

/** Takes a command apart: blanks separate, quotes and backslashes keep together. */
export function words(command: string): string[] {
  const found: string[] = [];
  let word: string | null = null;
  let quote: string | null = null;
  for (let idx = 0; idx < command.length; idx++) {
    const letter = command.charAt(idx);
    if (letter === "\\" && quote !== "'") {
      idx += 1;
      word = (word ?? "") + command.charAt(idx);
    } else if (quote !== null) {
      if (letter === quote) quote = null;
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (/\s/.test(letter)) {
      if (word !== null) found.push(word);
      word = null;
    } else word = (word ?? "") + letter;
  }
  if (word !== null) found.push(word);
  return found;
}

/** A word that a shell reads as it is. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
