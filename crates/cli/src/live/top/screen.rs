use pollux_api::{Explanation, Job};
use pollux_client::JobAction;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::feed::{News, World};

/// What is shown, and what its user is about to do.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) url: String,
    /// How things stood when the server was last heard of.
    pub(super) world: Option<World>,
    /// Why it is not heard of now.
    pub(super) lost: Option<String>,
    /// What came of the last order.
    pub(super) told: Option<String>,
    pub(super) popup: Popup,
    /// The job that keys are about.
    selected: Option<u64>,
}

/// What lies over the rest.
#[derive(Debug)]
pub(super) enum Popup {
    /// Nothing.
    None,
    /// The question whether a job is to be cancelled.
    Cancel {
        /// Which.
        id: u64,
        /// Its name.
        name: String,
    },
    /// Why a job has what it has.
    Explanation(Box<Explanation>),
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserAction {
    /// To leave.
    Quit,
    /// Something done with a job.
    Act(u64, JobAction),
    /// To know why a job has what it has.
    Explain(u64),
}

impl Screen {
    /// Nothing is known yet of the server there.
    pub(super) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), world: None, lost: None, told: None, popup: Popup::None, selected: None }
    }

    /// Takes in what is new.
    pub(super) fn hear(&mut self, news: News) {
        match news {
            News::World(world) => {
                self.world = Some(*world);
                self.lost = None;
                // A job that is not there any more leaves the keys to the first one.
                if self.place().is_none() {
                    self.selected = self.jobs().first().map(|job| job.id);
                }
            }
            News::Lost(reason) => self.lost = Some(reason),
            News::Told(text) => self.told = Some(text),
            News::Explained(explanation) => self.popup = Popup::Explanation(explanation),
        }
    }

    /// What a key means.
    pub(super) fn press(&mut self, key: KeyEvent) -> Option<UserAction> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(UserAction::Quit);
        }
        if let Popup::Cancel { id, .. } = self.popup {
            self.popup = Popup::None;
            return (key.code == KeyCode::Char('y')).then_some(UserAction::Act(id, JobAction::Cancel));
        }
        if matches!(self.popup, Popup::Explanation(_)) {
            self.popup = Popup::None;
            return None;
        }
        self.told = None;
        let job = self.place().map(|place| &self.jobs()[place]);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(UserAction::Quit),
            KeyCode::Char('p') => return job.map(|job| UserAction::Act(job.id, JobAction::Pause)),
            KeyCode::Char('r') => return job.map(|job| UserAction::Act(job.id, JobAction::Resume)),
            KeyCode::Char('e') | KeyCode::Enter => return job.map(|job| UserAction::Explain(job.id)),
            KeyCode::Char('c') => {
                if let Some(job) = job {
                    self.popup = Popup::Cancel { id: job.id, name: job.name.clone() };
                }
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(|place| place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|place| place + 1),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            // The footer says which keys there are.
            _ => {}
        }
        None
    }

    /// Where in the list the selected job is.
    pub(super) fn place(&self) -> Option<usize> {
        self.jobs().iter().position(|job| Some(job.id) == self.selected)
    }

    /// Jobs in the order in which they are shown.
    pub(super) fn jobs(&self) -> &[Job] {
        self.world.as_ref().map_or(&[], |world| &world.jobs)
    }

    fn select(&mut self, next: impl FnOnce(usize) -> usize) {
        let last = self.jobs().len().saturating_sub(1);
        let place = next(self.place().unwrap_or(0)).min(last);
        self.selected = self.jobs().get(place).map(|job| job.id);
    }
}
