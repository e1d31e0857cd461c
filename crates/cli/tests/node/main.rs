//! Machines that join, as real processes of this program: what every backend must do, and who is let in.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod hostile;
mod joining;
mod leaving;
mod site;
mod watch;

use pollux_backend::conformance::{Faults, Trial};
use pollux_backend::{Backend, Observer};

use site::Site;

/// One machine with four slots; those of the scheduler's own are not used.
fn trial(test: &str) -> Trial {
    let site = Site::new(test);
    site.run_agent("gpu1");
    let (opening, faults) = (site.clone(), Cuts(site));
    Trial::new(move |observer: Observer| opening.open(observer) as Box<dyn Backend>).with_faults(faults)
}

/// A machine does not answer while nothing runs its agent.
struct Cuts(Site);

impl Faults for Cuts {
    fn hold_starts(&self, _: &str) {
        unreachable!("those checks are declined")
    }

    fn release_starts(&self) {
        unreachable!("those checks are declined")
    }

    fn cut(&self, node: &str) {
        self.0.kill_agent(node);
    }

    fn mend(&self, node: &str) {
        self.0.run_agent_again(node);
    }

    fn lose(&self, node: &str) {
        self.0.remove(node);
    }
}

pollux_backend::conformance_tests!(trial, without held_starts: "processes start at once");
