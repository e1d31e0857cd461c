//! What policies decide on small worlds, and that no plan ever breaks a rule.

mod antman;
mod baselines;
mod check;
mod elastic;
mod gandiva;
mod random;
mod world;
