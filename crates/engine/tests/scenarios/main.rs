//! Small worlds, told line by line: `<second> <event> => <commands>`.
//!
//! Jobs are `j1`, revisions `r1`, nodes `n0`, replicas `n0*2+n1*1`, those of a guest of j1 `n0*2@j1`. Ticks carry the plan of the policy: jobs that it
//! does not mention keep what they have. Lines such as `show j1` change nothing and print.

mod script;

mod starting;
mod resizing;
mod resources;
mod failures;
mod limits;
mod nodes;
mod ends;
mod users;
mod rounds;
mod bad_input;
mod usage;
mod sharing;
