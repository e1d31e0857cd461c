use std::fmt::Write;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use pollux_api::{ClusterStatus, Failure};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::failure::HttpError;
use super::state::AppState;
use crate::{Tally, views};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Numbers for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "cluster", security(("token" = [])), responses(
    (status = 200, body = String, content_type = "text/plain; version=0.0.4"), (status = "default", body = Failure)))]
async fn metrics(State(state): State<AppState>) -> Result<Response, HttpError> {
    let policy = state.policy;
    let look = state.handle.look(move |cluster| Numbers {
        status: views::cluster_status(cluster, policy),
        nodes: cluster.engine().nodes().len(),
        tally: cluster.tally(),
        events: cluster.last_event(),
        journal_records: cluster.journal_records(),
    });
    let text = look.get().await?.text(state.answers());
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

struct Numbers {
    status: ClusterStatus,
    nodes: usize,
    tally: Tally,
    events: u64,
    journal_records: u64,
}

impl Numbers {
    fn text(&self, answers: [u64; 5]) -> String {
        let (ClusterStatus { version, policy, .. }, tally) = (&self.status, &self.tally);
        let mut page = Page::default();
        page.family("pollux_build_info", "gauge", "Version and policy.");
        page.sample(&format!("{{version=\"{version}\",policy=\"{policy}\"}}"), 1.0);
        page.family("pollux_jobs", "gauge", "Live jobs by phase.");
        for (phase, count) in &self.status.jobs {
            page.sample(&format!("{{phase={}}}", crate::text(phase)), *count as f64);
        }
        page.gauge("pollux_nodes", "Nodes that are up.", self.nodes as f64);
        page.gauge("pollux_gpus", "GPUs of nodes that are up.", self.status.gpus.into());
        page.gauge("pollux_gpus_held", "GPUs that replicas hold.", self.status.gpus_held.into());
        page.gauge("pollux_goodput", "Samples per second times what each is worth, of all jobs.", self.status.goodput);
        page.gauge("pollux_degraded", "1 while nothing can be written.", f64::from(u8::from(self.status.is_degraded)));
        page.gauge("pollux_journal_records", "Records that a restart would replay.", self.journal_records as f64);
        page.counter("pollux_rounds_total", "Plans made.", tally.rounds as f64);
        page.gauge("pollux_plan_seconds", "What the last plan took.", tally.plan_last_s);
        page.counter("pollux_plan_seconds_total", "What all plans took.", tally.plan_total_s);
        page.counter("pollux_commits_total", "Durable writes to the journal.", tally.commits as f64);
        page.family("pollux_group_changes_total", "counter", "Groups of replicas ordered, changed and ended.");
        for (kind, count) in [("launch", tally.launches), ("resize", tally.resizes), ("stop", tally.stops)] {
            page.sample(&format!("{{kind=\"{kind}\"}}"), count as f64);
        }
        page.counter("pollux_events_total", "Events in the history of the cluster.", self.events as f64);
        page.family("pollux_http_requests_total", "counter", "Requests by class of their status.");
        for (class, count) in answers.iter().enumerate() {
            page.sample(&format!("{{status=\"{}xx\"}}", class + 1), *count as f64);
        }
        page.text
    }
}

/// The text format of Prometheus.
#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    fn gauge(&mut self, name: &'static str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample("", value);
    }

    fn counter(&mut self, name: &'static str, help: &str, value: f64) {
        self.family(name, "counter", help);
        self.sample("", value);
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        // Text takes whatever is written.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, labels: &str, value: f64) {
        let _ = writeln!(self.text, "{}{labels} {value}", self.name);
    }
}
