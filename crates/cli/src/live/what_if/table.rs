//! Two futures side by side.

use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use pollux_api::{Completion, JobForecast, WhatIf};

use super::super::text::{UNKNOWN, count, known, percent, phase_style, span};
use crate::output::one_line;
use crate::table::{Align, Cell, Table};

/// Less is no change: moments are forecast to the second.
const SAME_S: f64 = 1.0;

/// Writes when jobs are complete, before and after if there are changes.
pub(super) fn write(answer: &WhatIf, is_changed: bool, out: &mut dyn Write) -> io::Result<()> {
    if answer.jobs.is_empty() {
        return writeln!(out, "no jobs are queued or running");
    }
    let mut columns = vec![("job", Align::Right), ("name", Align::Left), ("now", Align::Left), ("gpus", Align::Right)];
    if is_changed {
        columns.extend([("before", Align::Right), ("after", Align::Right), ("change", Align::Left)]);
    } else {
        columns.extend([("complete in", Align::Right), ("", Align::Left)]);
    }
    let mut table = Table::with_headings(&columns);
    for job in &answer.jobs {
        let mut line = vec![
            Cell::plain(known(job.id, |id| id.to_string())),
            Cell::plain(one_line(&job.name)),
            job.phase.map_or_else(|| Cell::plain("new"), |phase| Cell::styled(phase.word(), phase_style(phase))),
            Cell::plain(job.gpus().to_string()),
            moment(&job.before),
        ];
        line.extend(is_changed.then(|| moment(&job.after)));
        line.push(if is_changed { change(job) } else { why(&job.before) });
        table.push(line);
    }
    table.write("", out)?;
    writeln!(out)?;
    for sentence in summary(answer, is_changed) {
        writeln!(out, "{sentence}")?;
    }
    Ok(())
}

fn moment(completion: &Completion) -> Cell {
    Cell::plain(known(completion.completion_s, span))
}

fn why(completion: &Completion) -> Cell {
    Cell::styled(completion.why.as_deref().map(one_line).unwrap_or_default(), Style::new().dimmed())
}

/// How much sooner or later, or why that is not known.
fn change(job: &JobForecast) -> Cell {
    let (before, after) = match (job.before.completion_s, job.after.completion_s) {
        (Some(before), Some(after)) => (before, after),
        (None, Some(_)) if job.id.is_none() => return Cell::plain(""),
        (None, _) if job.id.is_some() => return why(&job.before),
        (_, _) => return why(&job.after),
    };
    match after - before {
        sooner if sooner <= -SAME_S => Cell::styled(format!("{} sooner", span(-sooner)), green()),
        later if later >= SAME_S => Cell::styled(format!("{} later", span(later)), red()),
        _ => Cell::styled("same", Style::new().dimmed()),
    }
}

/// Everything in sentences.
fn summary(answer: &WhatIf, is_changed: bool) -> Vec<String> {
    let mut sentences = Vec::new();
    let last = known(answer.makespan_s.before, span);
    let used = known(answer.gpu_utilisation.before, percent);
    if !is_changed {
        sentences.extend(answer.average_completion_s.map(|average| {
            format!(
                "Jobs are complete in {} on average, the last in {last}; {used} of the GPUs are used.",
                span(average.before)
            )
        }));
        return sentences;
    }
    if let Some(average) = answer.average_completion_s {
        let change = average.after / average.before - 1.0;
        let (style, word) = match change {
            change if change <= -0.005 => (green(), format!("{} sooner", percent(-change))),
            change if change >= 0.005 => (red(), format!("{} later", percent(change))),
            _ => (Style::new(), "as soon as without".to_owned()),
        };
        let (before, after) = (span(average.before), span(average.after));
        sentences.push(format!(
            "Jobs are complete in {after} on average instead of {before}: {style}{word}{style:#} ({}).",
            tally(answer)
        ));
    }
    let (last_after, used_after) = (known(answer.makespan_s.after, span), known(answer.gpu_utilisation.after, percent));
    if last_after != UNKNOWN || last != UNKNOWN {
        sentences.push(format!(
            "The last of them is complete in {last_after} instead of {last}; {used_after} of the GPUs are used instead of {used}."
        ));
    }
    sentences
}

/// How many are sooner, later and the same.
fn tally(answer: &WhatIf) -> String {
    let both = |job: &JobForecast| Some(job.after.completion_s? - job.before.completion_s?);
    let changes: Vec<f64> = answer.jobs.iter().filter_map(both).collect();
    let jobs = |wanted: fn(f64) -> bool| {
        let jobs = changes.iter().filter(|change| wanted(**change)).count();
        u32::try_from(jobs).unwrap_or(u32::MAX)
    };
    let (sooner, later) = (jobs(|change| change <= -SAME_S), jobs(|change| change >= SAME_S));
    format!("of {}, {sooner} sooner and {later} later", count(jobs(|_| true), "job"))
}

const fn green() -> Style {
    AnsiColor::Green.on_default()
}

const fn red() -> Style {
    AnsiColor::Red.on_default()
}

#[cfg(test)]
mod tests {
    use pollux_api::BeforeAfter;
    use pollux_job::Phase;

    use super::*;

    fn job(id: Option<u64>, before: Result<f64, &str>, after: Result<f64, &str>) -> JobForecast {
        let completion = |it: Result<f64, &str>| Completion { completion_s: it.ok(), why: it.err().map(str::to_owned) };
        JobForecast {
            id,
            name: "re\u{1b}snet".to_owned(),
            phase: id.map(|_| Phase::Running),
            replicas: u32::from(id.is_some()),
            gpus_per_replica: 1,
            before: completion(before),
            after: completion(after),
        }
    }

    fn answer(jobs: Vec<JobForecast>) -> WhatIf {
        WhatIf {
            now_ms: 0,
            policy: BeforeAfter::default(),
            jobs,
            average_completion_s: Some(BeforeAfter { before: 100.0, after: 80.0 }),
            makespan_s: BeforeAfter { before: Some(200.0), after: Some(100.0) },
            gpu_utilisation: BeforeAfter { before: Some(0.5), after: None },
            horizon_s: BeforeAfter::default(),
            notes: Vec::new(),
        }
    }

    /// As it is seen without colours.
    fn written(answer: &WhatIf, is_changed: bool) -> String {
        let mut out = Vec::new();
        write(answer, is_changed, &mut out).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
    }

    #[test]
    fn both_futures_line_up_and_what_is_not_known_has_its_reason() {
        let jobs = vec![
            job(Some(1), Ok(100.0), Ok(40.0)),
            job(Some(2), Ok(100.0), Ok(120.0)),
            job(Some(13), Err("it is paused"), Err("it is paused")),
            job(Some(14), Ok(7.0), Err("it is cancelled")),
            job(None, Err("it is not submitted"), Ok(90.0)),
        ];
        let expected = "\
job  name          now      gpus  before   after  change
  1  re\\u{1b}snet  running     1  1m 40s     40s  1m 00s sooner
  2  re\\u{1b}snet  running     1  1m 40s  2m 00s  20s later
 13  re\\u{1b}snet  running     1       -       -  it is paused
 14  re\\u{1b}snet  running     1      7s       -  it is cancelled
  -  re\\u{1b}snet  new         0       -  1m 30s  \n
Jobs are complete in 1m 20s on average instead of 1m 40s: 20% sooner (of 2 jobs, 1 sooner and 1 later).
The last of them is complete in 1m 40s instead of 3m 20s; - of the GPUs are used instead of 50%.
";
        assert_eq!(written(&answer(jobs), true), expected);
    }

    #[test]
    fn without_changes_there_is_one_future() {
        let jobs = vec![job(Some(1), Ok(100.0), Ok(100.0)), job(Some(2), Err("it is paused"), Err("it is paused"))];
        let expected = "\
job  name          now      gpus  complete in  \n  1  re\\u{1b}snet  running     1       1m 40s  \n\
\x20 2  re\\u{1b}snet  running     1            -  it is paused\n
Jobs are complete in 1m 40s on average, the last in 3m 20s; 50% of the GPUs are used.
";
        assert_eq!(written(&answer(jobs), false), expected);
        assert_eq!(written(&answer(Vec::new()), false), "no jobs are queued or running\n");
    }
}
