//! The screen as cells of a terminal.

use std::collections::BTreeMap;

use pollux_api::{ClusterStatus, Explanation, Job, Node, NodeJob};
use pollux_job::Phase;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Padding, Paragraph, Row, StatefulWidget, Table, TableState, Widget};
use unicode_width::UnicodeWidthStr;

use super::super::text::{amount, bar, count, has_ended, known, moment, percent, seconds_between, span};
use super::feed::World;
use super::screen::{Popup, Screen};
use crate::output::one_line;
use crate::table::padded;

/// Colours that tell jobs apart on the nodes.
const COLOURS: [Color; 6] = [Color::Green, Color::Blue, Color::Magenta, Color::Cyan, Color::Yellow, Color::Red];
/// Cells of the bar of GPUs, and of progress.
const BARS: (usize, usize) = (30, 8);
/// Lines of events.
const EVENTS: u16 = 6;
/// Columns of text in a popup.
const POPUP: u16 = 84;

impl Widget for &Screen {
    fn render(self, area: Rect, out: &mut Buffer) {
        let nodes = self.world.as_ref().map_or(0, |world| world.nodes.len());
        let node_lines = u16::try_from(nodes).unwrap_or(u16::MAX).saturating_add(2).clamp(3, (area.height / 3).max(3));
        let [head, nodes, jobs, events, foot] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Length(node_lines),
            Constraint::Fill(1),
            Constraint::Length(EVENTS + 2),
            Constraint::Length(1),
        ])
        .areas(area);
        self.draw_head(head, out);
        if let Some(world) = &self.world {
            draw_nodes(world, nodes, out);
            self.draw_jobs(world, jobs, out);
            draw_events(world, events, out);
        }
        self.draw_foot(foot, out);
        match &self.popup {
            Popup::None => {}
            Popup::Cancel { id, name } => {
                let question = format!("Cancel job {id} {}? y: yes, any other key: no", one_line(name));
                draw_popup("cancel", vec![Line::from(question)], area, out);
            }
            Popup::Explanation(explanation) => {
                let title = format!("job {} {}", explanation.id, one_line(&explanation.name));
                draw_popup(&title, explained(explanation), area, out);
            }
        }
    }
}

impl Screen {
    fn draw_head(&self, area: Rect, out: &mut Buffer) {
        let mut lines = Vec::new();
        match &self.world {
            Some(World { cluster, .. }) => lines.extend(summary(cluster, &self.url)),
            None => lines.push(Line::from(format!("pollux at {}: waiting for an answer", self.url))),
        }
        if let Some(reason) = &self.lost {
            lines.push(Line::from(format!("lost: {}; trying again", one_line(reason))).red().bold());
        } else if self.world.as_ref().is_some_and(|world| world.cluster.is_degraded) {
            lines.push(Line::from("nothing can be written: the disk of the state folder is full").red().bold());
        }
        Paragraph::new(lines).render(area, out);
    }

    fn draw_jobs(&self, world: &World, area: Rect, out: &mut Buffer) {
        let right = |heading: &str, width: usize| format!("{heading:>width$}");
        let headings = [
            right("id", 6),
            "name".to_owned(),
            "phase".to_owned(),
            right("gpus", 4),
            right("batch", 7),
            right("samples/s", 9),
            right("eff.", 5),
            right("goodput", 8),
            "progress".to_owned(),
            right("left", 8),
        ];
        let widths = [6, 0, 9, 4, 7, 9, 5, 8, 13, 8];
        let widths = widths.map(|width| if width == 0 { Constraint::Min(8) } else { Constraint::Length(width) });
        let table = Table::new(world.jobs.iter().map(row), widths)
            .header(Row::new(headings).bold())
            .row_highlight_style(Modifier::REVERSED)
            .block(Block::bordered().title(" jobs "));
        let mut state = TableState::new().with_selected(self.place());
        StatefulWidget::render(table, area, out, &mut state);
    }

    fn draw_foot(&self, area: Rect, out: &mut Buffer) {
        let line = self.told.as_ref().map_or_else(
            || Line::from("↑↓ choose  e explain  p pause  r resume  c cancel  q quit").dim(),
            |told| Line::from(one_line(told)).yellow(),
        );
        line.render(area, out);
    }
}

/// The cluster in two lines.
fn summary<'a>(cluster: &ClusterStatus, url: &str) -> [Line<'a>; 2] {
    let jobs = cluster.jobs.iter().filter(|&(_, &number)| number > 0);
    let jobs: Vec<String> = jobs.map(|(&phase, number)| format!("{number} {}", phase.word())).collect();
    let jobs = if jobs.is_empty() { "no jobs".to_owned() } else { jobs.join(", ") };
    let next = cluster.next_round_ms.map(|at| format!("next plan in {}", span(seconds_between(cluster.now_ms, at))));
    let share = f64::from(cluster.gpus_held) / f64::from(cluster.gpus.max(1));
    let held = format!(" {} of {} held", cluster.gpus_held, count(cluster.gpus, "GPU"));
    let first = vec![
        Span::from(format!("pollux {}", one_line(&cluster.version))).bold(),
        Span::from(format!(" at {url}, policy ")),
        Span::from(one_line(&cluster.policy)).bold(),
        Span::from(format!(": {jobs}")),
    ];
    let filled = bar(share, BARS.0);
    let empty = " ".repeat(BARS.0.saturating_sub(filled.chars().count()));
    let second = vec![
        Span::from(filled).green().on_dark_gray(),
        Span::from(empty).on_dark_gray(),
        Span::from(held),
        Span::from("   goodput "),
        Span::from(amount(cluster.goodput)).bold(),
        Span::from(next.map(|next| format!("   {next}")).unwrap_or_default()),
    ];
    [Line::from(first), Line::from(second)]
}

/// A line for each node: its name, then a cell for each GPU with the job that has it.
fn draw_nodes(world: &World, area: Rect, out: &mut Buffer) {
    let block = Block::bordered().title(" nodes ");
    let inner = block.inner(area);
    block.render(area, out);
    let widest = world.nodes.iter().map(|node| one_line(&node.name).width()).max().unwrap_or(0);
    let shown = usize::from(inner.height);
    let hidden = world.nodes.len().saturating_sub(shown);
    let fitting = if hidden == 0 { shown } else { shown.saturating_sub(1) };
    let mut lines: Vec<Line<'_>> =
        world.nodes.iter().take(fitting).map(|node| node_line(node, widest, world)).collect();
    if hidden > 0 {
        lines.push(Line::from(format!("and {} more", world.nodes.len() - fitting)).dim());
    }
    Paragraph::new(lines).render(inner, out);
}

fn node_line<'a>(node: &Node, widest: usize, world: &World) -> Line<'a> {
    let mut spans = vec![Span::from(padded(&one_line(&node.name), widest + 1))];
    for job in &node.jobs {
        let cell = format!(" {:>3} ", job.id);
        spans.extend(cells(job.gpus(), &cell, Style::new().fg(Color::Black).bg(colour(job.id))));
    }
    let placed: u32 = node.jobs.iter().map(NodeJob::gpus).sum();
    // Held by replicas that are on their way out.
    spans.extend(cells(node.gpus_held.saturating_sub(placed), "  ~  ", Style::new().bg(Color::DarkGray)));
    let taken = placed.max(node.gpus_held);
    spans.extend(cells(node.gpus.saturating_sub(taken), "  ·  ", Style::new().add_modifier(Modifier::DIM)));
    let cooling = node.cooling_until_ms.filter(|&until| until > world.cluster.now_ms);
    if node.is_unreachable {
        spans.push(Span::from(" unreachable").red());
    } else if node.is_retired {
        spans.push(Span::from(" retired").yellow());
    } else if node.is_draining {
        spans.push(Span::from(" draining").yellow());
    } else if let Some(until) = cooling {
        let left = span(seconds_between(world.cluster.now_ms, until));
        spans.push(Span::from(format!(" cooling {left}")).yellow());
    }
    Line::from(spans)
}

fn cells<'a>(number: u32, text: &str, style: Style) -> impl Iterator<Item = Span<'a>> {
    (0..number).flat_map(move |_| [Span::styled(text.to_owned(), style), Span::from(" ")])
}

const fn colour(job: u64) -> Color {
    COLOURS[(job % COLOURS.len() as u64) as usize]
}

fn row<'a>(job: &Job) -> Row<'a> {
    let live = !has_ended(job.phase);
    let progress = known(job.progress, |share| format!("{:<8} {:>4}", bar(share, BARS.1), percent(share)));
    let right = |text: String, width: usize| Line::from(format!("{text:>width$}"));
    let cells = vec![
        right(job.id.to_string(), 6),
        Line::from(one_line(&job.name)),
        Line::from(job.phase.word()).style(phase_style(job.phase)),
        right(if live { job.gpus().to_string() } else { "-".to_owned() }, 4),
        right(known(job.batch_size, |batch| batch.to_string()), 7),
        right(known(job.samples_per_s.filter(|_| live), amount), 9),
        right(known(job.efficiency.filter(|_| live), percent), 5),
        right(known(job.goodput.filter(|_| live), amount), 8),
        Line::from(progress),
        right(known(job.remaining_s.filter(|_| live), span), 8),
    ];
    let row = Row::new(cells);
    if live { row } else { row.dim() }
}

/// Green trains, yellow waits, red has failed, dim is over.
const fn phase_style(phase: Phase) -> Style {
    match phase {
        Phase::Running | Phase::Resizing => Style::new().fg(Color::Green),
        Phase::Queued | Phase::Starting | Phase::Paused => Style::new().fg(Color::Yellow),
        Phase::Failed => Style::new().fg(Color::Red),
        Phase::Succeeded | Phase::Cancelled => Style::new().add_modifier(Modifier::DIM),
        Phase::Unknown => Style::new(),
    }
}

fn draw_events(world: &World, area: Rect, out: &mut Buffer) {
    let block = Block::bordered().title(" events ");
    let lines = usize::from(block.inner(area).height);
    let first = world.events.len().saturating_sub(lines);
    let names: BTreeMap<u64, &str> = world.jobs.iter().map(|job| (job.id, job.name.as_str())).collect();
    let lines = world.events[first..].iter().map(|event| {
        let job = event.job.map(|job| format!("job {job} {}: ", one_line(names.get(&job).unwrap_or(&""))));
        let time = moment(event.at_ms).split(' ').next_back().unwrap_or_default().to_owned();
        Line::from(vec![
            Span::from(time + "  ").dim(),
            Span::from(job.unwrap_or_default()),
            Span::from(one_line(&event.text)),
        ])
    });
    Paragraph::new(lines.collect::<Vec<_>>()).block(block).render(area, out);
}

fn explained<'a>(explanation: &Explanation) -> Vec<Line<'a>> {
    let sentences = explanation.sentences.iter().flat_map(|sentence| wrapped(&one_line(sentence)));
    let mut lines: Vec<Line<'a>> = sentences.map(Line::from).collect();
    if !explanation.sizes.is_empty() {
        lines.push(Line::default());
        lines.push(Line::from("     gpus    batch   eff.   goodput").bold());
    }
    let best = explanation.sizes.iter().map(|size| size.goodput).fold(f64::MIN_POSITIVE, f64::max);
    for size in &explanation.sizes {
        let is_now = size.replicas == explanation.replicas;
        let text = format!(
            "{:>4} {:>4} {:>8} {:>6} {:>9}  {}",
            if is_now { "now" } else { "" },
            explanation.gpus_of(size.replicas),
            size.batch_size,
            percent(size.efficiency),
            amount(size.goodput),
            bar(size.goodput / best, BARS.0),
        );
        let line = Line::from(text);
        lines.push(match size.is_measured {
            _ if is_now => line.green(),
            true => line,
            false => line.dim(),
        });
    }
    lines
}

fn draw_popup(title: &str, lines: Vec<Line<'_>>, area: Rect, out: &mut Buffer) {
    let block = Block::bordered().title(format!(" {title} ")).padding(Padding::horizontal(1));
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let popup = area.centered(Constraint::Length(POPUP + 4), Constraint::Length(height));
    Clear.render(popup, out);
    Paragraph::new(lines).block(block).render(popup, out);
}

/// A sentence as lines of the popup.
fn wrapped(sentence: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let last = lines.last_mut().expect("there is one from the beginning");
        if last.is_empty() {
            last.push_str(word);
        } else if last.width() + 1 + word.width() <= usize::from(POPUP) {
            *last += " ";
            *last += word;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
