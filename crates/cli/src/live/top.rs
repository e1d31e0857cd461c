//! `pollux top`: the cluster, live.
//!
//! ```text
//!  server ──events, answers──> Feed (threads) ──News──> Screen ──draw──> terminal
//!    ^                                                    │ keys
//!    └────────── orders, questions ────── UserAction <────┘
//! ```

mod draw;
mod feed;
mod screen;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;
use unicode_width::UnicodeWidthStr;

use super::LiveError;
use super::server_args::ServerArgs;
use feed::{Feed, News, World};
use screen::{Screen, UserAction};

/// Between two looks at the keyboard.
const GLANCE: Duration = Duration::from_millis(100);
/// What a frame without a terminal is as large as.
const SIZE: (u16, u16) = (110, 32);

/// What `pollux top` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys: arrows choose a job, e explains it, p pauses, r resumes and c cancels it (after a question), q leaves.")]
pub(crate) struct TopArgs {
    /// Print one frame as text and exit
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Shows the cluster until its user has seen enough.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let client = args.server.client()?;
    let mut screen = Screen::new(client.url());
    if args.once {
        screen.hear(News::World(Box::new(World::read(&client)?)));
        let (columns, lines) = if io::stdout().is_terminal() { terminal::size().unwrap_or(SIZE) } else { SIZE };
        return print(&frame(&screen, columns, lines));
    }
    if !io::stdout().is_terminal() {
        return Err(LiveError::NoTerminal.into());
    }
    let feed = Feed::start(&client)?;
    // It restores the terminal also when something panics.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let outcome = show(&mut terminal, &mut screen, &feed);
    ratatui::restore();
    outcome
}

fn show(terminal: &mut DefaultTerminal, screen: &mut Screen, feed: &Feed) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| frame.render_widget(&*screen, frame.area())).context("cannot draw")?;
        if event::poll(GLANCE).context("cannot read the keyboard")? {
            let action = match event::read().context("cannot read the keyboard")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => screen.press(key),
                // The next frame has the new size.
                _ => None,
            };
            match action {
                Some(UserAction::Quit) => return Ok(()),
                Some(UserAction::Act(id, action)) => feed.act(id, action),
                Some(UserAction::Explain(id)) => feed.explain(id),
                None => {}
            }
        }
        feed.news().for_each(|news| screen.hear(news));
    }
}

/// A frame as lines of text.
fn frame(screen: &Screen, columns: u16, lines: u16) -> String {
    let area = Rect::new(0, 0, columns, lines);
    let mut buffer = Buffer::empty(area);
    screen.render(area, &mut buffer);
    let line = |row| {
        let (mut text, mut column) = (String::new(), 0);
        while column < columns {
            let symbol = buffer[(column, row)].symbol();
            text.push_str(symbol);
            // A wide letter covers the cell behind it.
            column += u16::try_from(symbol.width()).unwrap_or(1).max(1);
        }
        text.trim_end().to_owned() + "\n"
    };
    (0..lines).map(line).collect()
}

fn print(text: &str) -> anyhow::Result<()> {
    io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout")
}
