//! What policies decide on small worlds, and that no plan ever breaks a rule.

mod antman;
mod autoscaler;
mod baselines;
mod check;
mod elastic;
mod gandiva;
mod mixed;
mod optimus;
mod random;
mod resources;
mod slaq;
mod themis;
mod tiresias;
mod world;
