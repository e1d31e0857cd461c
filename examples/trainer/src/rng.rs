use std::f64::consts::TAU;

/// `SplitMix64`: the same seed gives the same numbers on every machine and in every process.
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// A generator for one purpose (`stream`) of a seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self { state: mix(seed ^ mix(stream)) }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// From 0 inclusive to 1 exclusive.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// One of `0..bound`, which must not be empty.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Mean 0, variance 1.
    pub(crate) fn normal(&mut self) -> f32 {
        let (radius, angle) = ((-2.0 * (1.0 - self.unit()).ln()).sqrt(), TAU * self.unit());
        (radius * angle.cos()) as f32
    }
}

/// Turns equal steps into bits without a pattern.
pub(crate) const fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
