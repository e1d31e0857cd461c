import { useEffect } from "preact/hooks";
import { duration } from "./format";
import { cluster, connection, isLoaded, now, refusal } from "./live";
import { ClusterPage } from "./pages/cluster";
import { JobPage } from "./pages/job";
import { JobsPage } from "./pages/jobs";
import { LoginPage } from "./pages/login";
import { ReportPage } from "./pages/report";
import { WhatIfPage } from "./pages/what-if";
import { Questions } from "./parts/dialog";
import { Guarded } from "./parts/guarded";
import { route } from "./router";
import { logOut, token } from "./session";
import { theme, toggleTheme } from "./theme";

const PAGES = [
  ["cluster", "Cluster"],
  ["jobs", "Jobs"],
  ["what-if", "What if"],
  ["report", "Reports"],
] as const;

/** Everything. */
export function App() {
  const { page, argument } = route.value;
  useEffect(() => {
    const title = PAGES.find(([name]) => name === page)?.[1] ?? "Pollux";
    document.title = argument ? `Job ${argument} · Pollux` : `${title} · Pollux`;
  }, [page, argument]);
  if (token.value === null) return <LoginPage />;
  return (
    <>
      <button type="button" class="skip" onClick={skip}>
        Skip to content
      </button>
      <Header page={page} />
      <Notice />
      <main id="content" tabIndex={-1} aria-busy={!isLoaded.value}>
        <Guarded key={`${page}/${argument}`}>
          <Page page={page} argument={argument} />
        </Guarded>
      </main>
      <Questions />
    </>
  );
}

function skip(): void {
  document.getElementById("content")?.focus();
}

function Page({ page, argument }: { page: string; argument: string }) {
  switch (page) {
    case "cluster":
      return <ClusterPage />;
    case "jobs":
      return argument ? <JobPage key={argument} id={Number(argument)} /> : <JobsPage />;
    case "what-if":
      return <WhatIfPage />;
    case "report":
      return <ReportPage />;
    default:
      return (
        <div class="empty">
          <h1>There is no such page</h1>
          <p>
            <a href="#/cluster">To the cluster</a>
          </p>
        </div>
      );
  }
}

function Header({ page }: { page: string }) {
  const status = cluster.value;
  const next = status?.next_round_ms;
  return (
    <header class="top">
      <a class="brand" href="#/cluster" aria-label="Pollux, to the cluster">
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <path d="M2 14V2h5.5a4 4 0 0 1 0 8H6v4z" fill="var(--accent)" />
          <circle cx="13" cy="12.5" r="1.8" fill="var(--j1)" />
        </svg>
        Pollux
      </a>
      <nav aria-label="Pages">
        {PAGES.map(([name, title]) => (
          <a key={name} href={`#/${name}`} aria-current={name === page ? "page" : undefined}>
            {title}
          </a>
        ))}
      </nav>
      <span class="top-gap" />
      {status && (
        <span class="top-fact wide" title={`pollux ${status.version}`}>
          {status.policy}
          {next != null && <span class="soft"> · plans in {duration((next - now.value) / 1_000)}</span>}
        </span>
      )}
      <span class={`state state-${connection.value}`} role="status">
        {connection.value === "live" ? "live" : connection.value === "lost" ? "reconnecting" : "connecting"}
      </span>
      <button
        type="button"
        class="icon"
        onClick={toggleTheme}
        aria-label={`Use the ${theme.value === "dark" ? "light" : "dark"} theme`}
      >
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="1.5" />
          <path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor" />
        </svg>
      </button>
      <button type="button" onClick={logOut}>
        Log out
      </button>
    </header>
  );
}

function Notice() {
  if (refusal.value !== null) {
    return (
      <div class="notice" role="alert">
        What is shown may be old: {refusal.value}
      </div>
    );
  }
  if (connection.value === "lost") {
    return (
      <div class="notice" role="alert">
        The server does not answer. Jobs train on without it; this page goes on by itself when it is back.
      </div>
    );
  }
  if (cluster.value?.is_degraded) {
    return (
      <div class="notice" role="alert">
        The server cannot write at the moment, so that it takes nothing new: is the disk full?
      </div>
    );
  }
  return null;
}
