use std::io::{self, Write};

use clap::Args;
use clap::builder::styling::{AnsiColor, Style};
use pollux_api::{Event, EventList};
use pollux_client::{Client, EventQuery};

use super::lookup::job_id;
use super::reconnect::Reconnect;
use super::server_args::ServerArgs;
use super::text::moment;
use crate::output::{self, OutputFormat, one_line};
use crate::usage::whole;

/// Most events in one answer.
const PAGE: u32 = 1_000;

/// What `pollux events` takes.
#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Only events of this job, by number or name
    job: Option<String>,

    /// Keep printing new events
    #[arg(short, long)]
    follow: bool,

    /// Only events after this number [default: the last ones]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole(0..=u64::MAX, "expected whole numbers from 0"))]
    after: Option<u64>,

    /// Maximum number of past events to print
    #[arg(long, value_name = "N", default_value_t = 50, allow_negative_numbers = true)]
    #[arg(value_parser = whole(1..=1_000_000_u32, "expected whole numbers from 1 to 1000000"))]
    limit: u32,

    /// Print for people or for programs; followed, an object a line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,

    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Prints what has happened.
pub(crate) fn run(args: &EventsArgs) -> anyhow::Result<()> {
    let client = args.server.client()?;
    let job = args.job.as_deref().map(|job| job_id(&client, job)).transpose()?;
    let list = match args.after {
        Some(after) => page(&client, EventQuery { after, job, limit: None }, args.limit)?,
        None => latest(&client, job, args.limit)?,
    };
    if !args.follow {
        return output::print(args.output, &list, |out| {
            list.events.iter().try_for_each(|event| write_line(event, out))
        });
    }
    let mut stdout = anstream::stdout();
    list.events.iter().try_for_each(|event| show(args.output, event, &mut stdout))?;
    follow(&client, EventQuery { after: list.next_after, job, limit: None }, &mut |event| {
        show(args.output, event, &mut stdout)
    })
}

/// Tells what happens for as long as there is a server, each event once.
fn follow(
    client: &Client,
    mut query: EventQuery,
    show: &mut dyn FnMut(&Event) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut reconnect = Reconnect::default();
    loop {
        match client.event_stream(query) {
            Ok(events) => {
                reconnect.renew();
                for event in events {
                    let event = match event {
                        Ok(event) => event,
                        Err(error) if error.is_passing() => break,
                        Err(error) => return Err(error.into()),
                    };
                    show(&event)?;
                    query.after = event.sequence;
                }
            }
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error.into()),
        }
        // A server that shuts down ends the stream, which is no end of what happens.
        reconnect.wait(client)?;
    }
}

/// The last events of a job, or of all.
pub(super) fn latest(client: &Client, job: Option<u64>, limit: u32) -> anyhow::Result<EventList> {
    let after = match job {
        // A job has few.
        Some(_) => 0,
        None => client.cluster()?.last_event.saturating_sub(u64::from(limit)),
    };
    let mut list = page(client, EventQuery { after, job, limit: None }, u32::MAX)?;
    let surplus = list.events.len().saturating_sub(limit as usize);
    list.events.drain(..surplus);
    Ok(list)
}

/// Events in as many requests as it takes.
fn page(client: &Client, mut query: EventQuery, limit: u32) -> anyhow::Result<EventList> {
    let mut list = EventList { events: Vec::new(), next_after: query.after };
    loop {
        let missing = limit.saturating_sub(u32::try_from(list.events.len()).unwrap_or(u32::MAX));
        query.limit = Some(missing.min(PAGE));
        query.after = list.next_after;
        if missing == 0 {
            return Ok(list);
        }
        let next = client.events(query)?;
        if next.events.is_empty() {
            return Ok(list);
        }
        list.events.extend(next.events);
        list.next_after = next.next_after;
    }
}

fn show(format: OutputFormat, event: &Event, out: &mut dyn Write) -> io::Result<()> {
    match format {
        OutputFormat::Table => write_line(event, out)?,
        OutputFormat::Json => {
            serde_json::to_writer(&mut *out, event)?;
            writeln!(out)?;
        }
    }
    out.flush()
}

fn write_line(event: &Event, out: &mut dyn Write) -> io::Result<()> {
    let (dimmed, style) = (Style::new().dimmed(), style(event));
    let job = event.job.map(|job| format!("job {job}")).unwrap_or_default();
    let (at, text) = (moment(event.at_ms), one_line(&event.text));
    writeln!(out, "{dimmed}{at} {:>6}{dimmed:#}  {job:<8}  {style}{text}{style:#}", event.sequence)
}

/// Red went wrong, green trains.
fn style(event: &Event) -> Style {
    let ended_as = event.detail.get("phase").map(ToString::to_string).unwrap_or_default();
    match event.kind.as_str() {
        "not_started" | "plan_rejected" | "node_lost" => AnsiColor::Red.on_default(),
        "ended" if ended_as.contains("failed") => AnsiColor::Red.on_default(),
        "ready" | "ended" => AnsiColor::Green.on_default(),
        // Most things are neither good nor bad, and later servers tell of more.
        _ => Style::new(),
    }
}
