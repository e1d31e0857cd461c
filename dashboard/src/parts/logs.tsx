import { useEffect, useMemo, useState } from "preact/hooks";
import { plural, whole } from "../format";
import { Hits, isHit, LogFeed, type LogState, plain } from "../logs";
import { Window } from "./window";

const ROW_HEIGHT = 18;
/** Of a longer line this much is shown, and as much again whenever more is asked for. */
const SHOWN_MAX = 2_000;
const MORE = 20_000;

/** What a job writes, live, with search. */
export function Logs({ job, replicas }: { job: number; replicas: readonly number[] }) {
  const [replica, setReplica] = useState("");
  const [text, setText] = useState("");
  const [isFollowing, setFollowing] = useState(true);
  const feed = useMemo(() => new LogFeed(job, replica), [job, replica]);
  useEffect(() => feed.follow(), [feed]);
  const wanted = text.toLowerCase();
  const { count, row } = useRows(feed, wanted);
  return (
    <section class="card logs" aria-labelledby="logs-title">
      <div class="card-head">
        <h2 id="logs-title">Logs</h2>
        <input
          type="search"
          placeholder="Search"
          aria-label="Search the logs"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <select aria-label="Replica" value={replica} onChange={(event) => setReplica(event.currentTarget.value)}>
          <option value="">all replicas</option>
          {replicas.map((number) => (
            <option key={number} value={`${number}`}>
              replica {number}
            </option>
          ))}
        </select>
        <label class="check">
          <input
            type="checkbox"
            checked={isFollowing}
            onChange={(event) => setFollowing(event.currentTarget.checked)}
          />
          Follow
        </label>
        <button type="button" onClick={() => save(job, feed)} disabled={count === 0 && wanted === ""}>
          Save
        </button>
        <span class="soft" role="status">
          {status(feed, count, wanted !== "")}
        </span>
      </div>
      {count === 0 ? (
        <p class="soft pad">{wanted ? `No line has “${text}” in it.` : "It has written nothing yet."}</p>
      ) : (
        <Window
          className="log"
          label="Log lines"
          role="log"
          count={count}
          rowHeight={ROW_HEIGHT}
          height={count * ROW_HEIGHT + 16}
          sticks={isFollowing}
          row={row}
        />
      )}
    </section>
  );
}

/** What is to be shown: lines, all or those that have something in them, and then those that have no end yet. */
function useRows(feed: LogFeed, wanted: string) {
  const search = useMemo(() => (wanted === "" ? null : new Hits(feed, wanted)), [feed, wanted]);
  // It changes whenever lines have come.
  feed.version.value;
  const { lines, dropped } = feed;
  const hits = search?.look() ?? { count: lines.length, at: (idx: number) => idx };
  const begun = feed.unfinished().filter((line) => wanted === "" || isHit(line, wanted));
  const row = (idx: number) => {
    const at = idx < hits.count ? hits.at(idx) : lines.length + idx - hits.count;
    const line = lines[at] ?? begun[idx - hits.count] ?? "";
    return <LogLine key={dropped + at} line={line} wanted={wanted} />;
  };
  return { count: hits.count + begun.length, row };
}

function status(feed: LogFeed, count: number, isSearch: boolean): string {
  const dropped = feed.dropped > 0 ? `, ${whole(feed.dropped)} older ones not kept` : "";
  return `${plural(count, isSearch ? "hit" : "line")}${dropped}${progress(feed.state.value)}`;
}

function progress(state: LogState): string {
  switch (state.is) {
    case "reading":
      return "";
    case "ended":
      return ", complete";
    case "waiting":
    case "refused":
      return `, ${state.why}`;
  }
}

function LogLine({ line, wanted }: { line: string; wanted: string }) {
  const [most, setMost] = useState(SHOWN_MAX);
  // Only what is shown is looked at: a line may have millions of characters.
  const shown = plain(line.slice(0, most));
  return (
    <div class="log-line" style={{ height: `${ROW_HEIGHT}px` }}>
      {wanted === "" ? shown : <Marked text={shown} wanted={wanted} />}
      {line.length > most && (
        <button type="button" class="more" onClick={() => setMost(most + MORE)}>
          {whole(line.length - most)} more characters
        </button>
      )}
    </div>
  );
}

function Marked({ text, wanted }: { text: string; wanted: string }) {
  const parts = [];
  const lower = text.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + wanted.length)}</mark>);
    from = at + wanted.length;
  }
  return <>{[...parts, text.slice(from)]}</>;
}

/** Everything that is kept here. */
function save(job: number, feed: LogFeed): void {
  const lines = [...feed.lines, ...feed.unfinished()];
  const url = URL.createObjectURL(new Blob([lines.join("\n"), "\n"], { type: "text/plain" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `job-${job}.log`;
  link.click();
  URL.revokeObjectURL(url);
}
