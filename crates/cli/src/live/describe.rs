use std::borrow::Cow;
use std::io::{self, Write};

use clap::Args;
use clap::builder::styling::Style;
use pollux_api::JobDetail;
use pollux_job::{Flexibility, JobSpec, Work, size};

use super::lookup::job_id;
use super::priority;
use super::server_args::ServerArgs;
use super::text::{amount, count, has_ended, ids, known, moment, now_ms, percent, phase_style, seconds_between, span};
use crate::output::{self, OutputFormat, one_line};
use crate::table::{Align, Cell, Table};

/// What `pollux describe` takes.
#[derive(Args, Debug)]
pub(crate) struct DescribeArgs {
    /// A job, by number or name
    job: String,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,

    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Shows everything about a job.
pub(crate) fn run(args: &DescribeArgs) -> anyhow::Result<()> {
    let client = args.server.client()?;
    let detail = client.job(job_id(&client, &args.job)?)?;
    output::print(args.output, &detail, |out| {
        let priority = priority::meaning(&client, detail.spec.priority);
        write_text(&detail, priority.as_deref(), now_ms(), out)
    })
}

fn write_text(detail: &JobDetail, priority: Option<&str>, now_ms: u64, out: &mut dyn Write) -> io::Result<()> {
    let job = &detail.job;
    let (bold, style) = (Style::new().bold(), phase_style(job.phase));
    let (name, phase) = (one_line(&job.name), job.phase.word());
    let since = span(seconds_between(job.phase_since_ms, now_ms));
    let since = if has_ended(job.phase) { format!("{since} ago") } else { format!("for {since}") };
    writeln!(out, "{bold}job {} {name}{bold:#}: {style}{phase}{style:#} {since}", job.id)?;
    if let Some(failure) = &job.failure {
        writeln!(out, "  {style}{}{style:#}", one_line(failure))?;
    }
    let mut table = Table::without_headings(&[Align::Left, Align::Left]);
    push(&mut table, "asked for", spec_lines(&detail.spec, priority));
    push(&mut table, "training", training_lines(detail));
    push(&mut table, "usage", usage_lines(detail, now_ms));
    table.write("  ", out)
}

fn push(table: &mut Table, title: &str, lines: Vec<(&str, String)>) {
    table.push_title(Cell::styled(title, Style::new().bold()));
    for (label, text) in lines {
        table.push(vec![Cell::styled(label, Style::new().dimmed()), Cell::plain(one_line(&text))]);
    }
}

fn spec_lines(spec: &JobSpec, meaning: Option<&str>) -> Vec<(&'static str, String)> {
    let most = spec.replicas_limit();
    let sizes = match spec.flexibility {
        Flexibility::Rigid => format!("exactly {}", spec.replicas),
        Flexibility::NonPreemptible => format!("{} to {most}, kept once started", spec.replicas_min),
        Flexibility::Elastic => format!("{} to {most}, {} to begin with", spec.replicas_min, spec.replicas),
    };
    let mut lines = vec![
        ("owner", spec.owner.clone()),
        ("command", spec.command.iter().map(|part| quoted(part)).collect::<Vec<_>>().join(" ")),
        ("working folder", spec.working_dir.display().to_string()),
        ("replicas", sizes),
        ("each replica", resources(spec)),
        ("retries", spec.retries.to_string()),
    ];
    lines.extend(spec.env.iter().map(|(name, value)| ("variable", format!("{name}={value}"))));
    lines.extend(spec.secrets.keys().map(|name| ("secret", name.clone())));
    lines.extend((!spec.gpu_types.is_empty()).then(|| ("GPU types", spec.gpu_types.join(", "))));
    lines.extend(spec.application.clone().map(|application| ("application", application)));
    lines.extend(spec.batch_size.map(|batch| ("batch", batch.to_string())));
    lines.extend((spec.priority != 0).then(|| {
        let meaning = meaning.map_or_else(String::new, |meaning| format!(": {meaning}"));
        ("priority", format!("{}{meaning}", spec.priority))
    }));
    lines.extend(spec.work.map(|work| match work {
        Work::Epochs(epochs) => ("work", count(epochs, "epoch")),
        Work::BaselineSteps(steps) => ("work", format!("{steps} steps at the baseline batch")),
    }));
    lines.extend(spec.time_limit.map(|limit| ("time limit", span(limit as f64))));
    lines.extend(spec.depends_on.iter().map(|dependency| ("after job", dependency.to_string())));
    lines.retain(|(_, text)| !text.is_empty());
    lines
}

/// An argument as a shell takes it.
fn quoted(part: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./=:,@%+".contains(letter);
    if !part.is_empty() && part.chars().all(is_plain) {
        return Cow::Borrowed(part);
    }
    Cow::Owned(format!("'{}'", part.replace('\'', r"'\''")))
}

fn resources(spec: &JobSpec) -> String {
    let mut parts = vec![count(spec.gpus_per_replica, "GPU")];
    parts.extend(spec.cpus.map(|cpus| count(cpus, "CPU")));
    parts.extend(spec.memory.map(|bytes| format!("{} of memory", size(bytes))));
    parts.join(", ")
}

fn training_lines(detail: &JobDetail) -> Vec<(&'static str, String)> {
    let job = &detail.job;
    let mut lines = Vec::new();
    if job.replicas > 0 {
        let gpus = match job.gpus_per_replica {
            1 => count(job.replicas, "GPU"),
            each => format!("{} of {each} GPUs", count(job.replicas, "replica")),
        };
        let on = format!("{gpus} on {}", count(job.nodes, "node"));
        lines.push(("group", format!("{on}, generation {}", detail.generation)));
    }
    let replicas = detail.group.iter().map(|it| format!("rank {} is replica {} on {}", it.rank, it.replica, it.node));
    lines.extend(replicas.map(|text| ("", text)));
    if detail.is_silent {
        lines.push(("agent", "none: it doesn't report to Pollux, so it won't be resized".to_owned()));
    }
    let batch = job.batch_size.map(|batch| match (detail.local_batch, detail.accumulation_steps) {
        (Some(local), Some(steps)) => format!("{batch} = {} x {local} x {}", count(job.replicas, "replica"), steps + 1),
        (_, _) => batch.to_string(),
    });
    lines.extend(batch.map(|text| ("batch", text)));
    lines.extend(job.learning_rate_factor.map(|factor| ("learning rate", format!("x{factor:.2}"))));
    lines.extend(job.samples_per_s.map(|rate| ("samples/s", amount(rate))));
    lines.extend(job.efficiency.map(|share| ("efficiency", percent(share))));
    lines.extend(job.goodput.map(|goodput| ("goodput", amount(goodput))));
    lines.extend(detail.noise_scale.map(|noise| ("noise scale", amount(noise))));
    lines.extend(job.epochs.map(|epochs| ("epochs", epochs.to_string())));
    lines.extend(job.progress.map(|share| {
        let left = job.remaining_s.map(|left| format!(", {} left", span(left))).unwrap_or_default();
        ("progress", percent(share) + &left)
    }));
    lines.extend(detail.replicas_profiled.map(|most| ("measured on", format!("up to {}", count(most, "replica")))));
    lines.extend(detail.restart_cost_s.map(|cost| ("a change costs", format!("{cost:.1} s"))));
    lines
}

fn usage_lines(detail: &JobDetail, now_ms: u64) -> Vec<(&'static str, String)> {
    let job = &detail.job;
    let at = |moment_ms| format!("{} UTC, {} ago", moment(moment_ms), span(seconds_between(moment_ms, now_ms)));
    let mut lines = vec![("submitted", at(job.submitted_ms))];
    lines.push(("started", known(job.started_ms, at)));
    lines.extend(job.ended_ms.map(|ended| ("ended", at(ended))));
    lines.push(("waited", span(job.queued_s)));
    lines.push(("GPU time", span(job.attained_gpu_s)));
    lines.push(("changes", format!("{} of its group, {}", job.restarts, retries(job.retries))));
    lines.push(("logs", if detail.replicas_logged.is_empty() { "none".to_owned() } else { logs(detail) }));
    lines.push(("checkpoints", detail.checkpoint_dir.clone()));
    lines
}

fn retries(number: u32) -> String {
    if number == 1 { "1 retry".to_owned() } else { format!("{number} retries") }
}

fn logs(detail: &JobDetail) -> String {
    let replicas = if detail.replicas_logged.len() == 1 { "replica" } else { "replicas" };
    format!("of {replicas} {}", ids(&detail.replicas_logged))
}
