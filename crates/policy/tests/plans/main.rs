//! What policies decide on small worlds, and that no plan ever breaks a rule.

mod baselines;
mod check;
mod elastic;
mod optimus;
mod random;
mod slaq;
mod world;
