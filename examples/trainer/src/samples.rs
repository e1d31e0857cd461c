use crate::rng::{Rng, mix};

pub(crate) const INPUTS: usize = 32;
pub(crate) const CLASSES: usize = 10;
/// Several clusters a class, so that no linear classifier will do.
const CLUSTERS_PER_CLASS: usize = 3;
/// Distance of the clusters in units of their width: they overlap.
const SPREAD: f32 = 0.75;

/// Streams of a seed. Epochs use those above.
const STREAM_CENTRES: u64 = 1;
const STREAM_TRAINING: u64 = 2;
const STREAM_TEST: u64 = 3;
pub(crate) const STREAM_PARAMETERS: u64 = 4;
const STREAM_EPOCHS: u64 = 1 << 32;

/// Labelled points from overlapping Gaussian clusters, some labels wrong. Every process generates the same from the
/// same seed. While a network is bad its gradients agree; once it is good, what is left is mostly the noise of wrong
/// labels: the noise scale grows as training goes on.
pub(crate) struct Samples {
    inputs: Vec<f32>,
    labels: Vec<u8>,
}

impl Samples {
    pub(crate) fn training(seed: u64, count: u32, label_noise: f64) -> Self {
        Self::generate(seed, STREAM_TRAINING, count, label_noise)
    }

    /// Other points of the same clusters, all labels right.
    pub(crate) fn test(seed: u64, count: u32) -> Self {
        Self::generate(seed, STREAM_TEST, count, 0.0)
    }

    fn generate(seed: u64, stream: u64, count: u32, label_noise: f64) -> Self {
        let mut rng = Rng::new(seed, STREAM_CENTRES);
        let clusters = CLASSES * CLUSTERS_PER_CLASS;
        let centres: Vec<f32> = (0..clusters * INPUTS).map(|_| rng.normal() * SPREAD).collect();

        let mut rng = Rng::new(seed, stream);
        let mut samples = Self { inputs: Vec::with_capacity(count as usize * INPUTS), labels: Vec::new() };
        for _ in 0..count {
            let cluster = rng.below(clusters);
            let centre = &centres[cluster * INPUTS..][..INPUTS];
            samples.inputs.extend(centre.iter().map(|middle| middle + rng.normal()));
            let wrong = rng.unit() < label_noise;
            let label = if wrong { rng.below(CLASSES) } else { cluster % CLASSES };
            samples.labels.push(label as u8);
        }
        samples
    }

    pub(crate) fn len(&self) -> u32 {
        self.labels.len() as u32
    }

    pub(crate) fn get(&self, idx: u32) -> (&[f32], usize) {
        let idx = idx as usize;
        (&self.inputs[idx * INPUTS..][..INPUTS], usize::from(self.labels[idx]))
    }
}

/// The order in which an epoch visits its samples.
pub(crate) fn order(seed: u64, epoch: u32, count: u32) -> Vec<u32> {
    let mut rng = Rng::new(seed, STREAM_EPOCHS + u64::from(epoch));
    let mut order: Vec<u32> = (0..count).collect();
    for idx in (1..order.len()).rev() {
        order.swap(idx, rng.below(idx + 1));
    }
    order
}

/// A sum over samples that tells, whatever their order, whether each was there once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) samples: u64,
    pub(crate) checksum: u64,
}

impl Tally {
    /// Each of `0..count` once.
    pub(crate) fn of_epoch(count: u32) -> Self {
        let mut tally = Self::default();
        (0..count).for_each(|idx| tally.count(idx));
        tally
    }

    pub(crate) const fn count(&mut self, idx: u32) {
        self.samples += 1;
        self.checksum = self.checksum.wrapping_add(mix(idx as u64 + 1));
    }

    pub(crate) const fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_visits_each_sample_once_and_no_two_epochs_in_the_same_order() {
        let (first, second) = (order(7, 0, 1000), order(7, 1, 1000));
        assert_ne!(first, second);
        assert_eq!(first, order(7, 0, 1000));
        for mut order in [first, second] {
            order.sort_unstable();
            assert_eq!(order, (0..1000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_tally_tells_a_sample_that_took_the_place_of_another() {
        let tally = |indices: &[u32]| {
            let mut tally = Tally::default();
            indices.iter().for_each(|&idx| tally.count(idx));
            tally
        };
        assert_eq!(tally(&[2, 0, 1, 3]), Tally::of_epoch(4));
        // The plain sum of the indices is the same.
        assert_ne!(tally(&[0, 0, 3, 3]), Tally::of_epoch(4));
        assert_ne!(tally(&[0, 1, 2]), Tally::of_epoch(4));
    }

    #[test]
    fn training_and_test_samples_differ_but_every_process_has_the_same() {
        let (samples, again) = (Samples::training(3, 50, 0.1), Samples::training(3, 50, 0.1));
        assert_eq!((&samples.inputs, &samples.labels), (&again.inputs, &again.labels));
        assert_ne!(samples.inputs, Samples::test(3, 50).inputs);
        assert_eq!(samples.len(), 50);
    }
}
