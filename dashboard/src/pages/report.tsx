import { useEffect, useRef, useState } from "preact/hooks";
import { drawPage } from "../../../crates/sim/src/report/page.js";

const [START, END] = ['<script type="application/json" id="data">', "</script>"];

/** Opens what `pollux sim --report` wrote. */
export function ReportPage() {
  const [report, setReport] = useState<{ name: string; data: unknown } | null>(null);
  const [error, setError] = useState("");
  const [isOver, setOver] = useState(false);
  const open = async (file: File | null | undefined) => {
    setOver(false);
    if (!file) return;
    try {
      setReport({ name: file.name, data: contents(await file.text()) });
      setError("");
    } catch {
      setError(`${file.name} is no report: expected an index.html that \`pollux sim … --report FOLDER\` wrote`);
    }
  };
  const pick = (
    <label class="button">
      {report ? "Open another" : "Open a report"}
      <input
        type="file"
        class="unseen"
        accept=".html,text/html"
        aria-label="Report"
        onChange={(event) => void open(event.currentTarget.files?.[0])}
      />
    </label>
  );
  const problem = error && (
    <p class="error" role="alert">
      {error}
    </p>
  );
  if (report) {
    return (
      <div class="reports">
        <div class="toolbar">
          <span class="soft">{report.name}</span>
          <span class="top-gap" />
          {pick}
        </div>
        {problem}
        <Drawn data={report.data} />
      </div>
    );
  }
  return (
    <div class="reports">
      <h1>Simulation reports</h1>
      <section
        class={`drop ${isOver ? "drop-over" : ""}`}
        aria-label="Where a report can be dropped"
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          void open(event.dataTransfer?.files[0]);
        }}
      >
        <p>Choose a report, or drop it here. It is read by this page and sent nowhere.</p>
        {pick}
        <p class="soft">
          <code>pollux sim compare --policy pollux,castor,fifo --report out</code> writes <code>out/index.html</code>
        </p>
        {problem}
      </section>
    </div>
  );
}

/** The data of a report; nothing else of the file is looked at. */
function contents(html: string): unknown {
  const start = html.indexOf(START);
  const end = html.indexOf(END, start);
  if (start < 0 || end < 0) throw new Error("no data");
  return JSON.parse(html.slice(start + START.length, end));
}

function Drawn({ data }: { data: unknown }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    element.replaceChildren();
    drawPage(data, element);
  }, [data]);
  return <div class="report" ref={place} />;
}
