import { useEffect, useMemo, useState } from "preact/hooks";
import { plural, whole } from "../format";
import { LogFeed, plain } from "../logs";
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
  const [feed, setFeed] = useState<LogFeed | null>(null);
  useEffect(() => {
    const opened = new LogFeed(job, replica);
    setFeed(opened);
    return () => opened.close();
  }, [job, replica]);
  const lines = feed?.lines.value ?? [];
  const wanted = text.toLowerCase();
  const shown = useMemo(
    () => (wanted === "" ? lines : lines.filter((line) => plain(line).toLowerCase().includes(wanted))),
    [lines, wanted],
  );
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
        <button type="button" onClick={() => save(job, lines)} disabled={lines.length === 0}>
          Save
        </button>
        <span class="soft" role="status">
          {status(feed, shown.length, wanted !== "")}
        </span>
      </div>
      {shown.length === 0 ? (
        <p class="soft pad">{wanted ? `No line has “${text}” in it.` : "It has written nothing yet."}</p>
      ) : (
        <Window
          className="log"
          label="Log lines"
          role="log"
          count={shown.length}
          rowHeight={ROW_HEIGHT}
          height={shown.length * ROW_HEIGHT + 16}
          sticks={isFollowing}
          row={(idx) => <LogLine key={idx} line={shown[idx] ?? ""} wanted={wanted} />}
        />
      )}
    </section>
  );
}

function status(feed: LogFeed | null, count: number, isSearch: boolean): string {
  if (!feed) return "";
  const dropped = feed.dropped.value > 0 ? `, ${whole(feed.dropped.value)} older ones not kept` : "";
  const how =
    feed.state.value === "reading" ? "" : feed.state.value === "ended" ? ", complete" : `, ${feed.state.value}`;
  return `${plural(count, isSearch ? "hit" : "line")}${dropped}${how}`;
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

/** Everything that is kept here, as it was written. */
function save(job: number, lines: readonly string[]): void {
  const url = URL.createObjectURL(new Blob([lines.join("\n"), "\n"], { type: "text/plain" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `job-${job}.log`;
  link.click();
  URL.revokeObjectURL(url);
}
