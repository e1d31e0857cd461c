//! What policies decide on small worlds, and that no plan ever breaks a rule.

mod autoscaler;
mod baselines;
mod check;
mod elastic;
mod random;
mod themis;
mod tiresias;
mod world;
