/**
 * Does something at once or, while that is under way, once more after it, however often it is asked for meanwhile:
 * whoever asks is told something that is not older than the question.
 */
export function coalesced<T>(work: () => Promise<T>): () => Promise<T> {
  let running: Promise<T> | null = null;
  let next: Promise<T> | null = null;
  const run = (): Promise<T> => {
    if (running === null) {
      running = work().finally(() => {
        running = null;
      });
      return running;
    }
    const begin = () => {
      next = null;
      return run();
    };
    next ??= running.then(begin, begin);
    return next;
  };
  return run;
}
