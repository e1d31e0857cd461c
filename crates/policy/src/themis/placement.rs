use std::cmp::Reverse;

use pollux_model::GpuType;

use super::policy::Grant;
use crate::free_gpus::FreeGpus;
use crate::gang::kind_of;
use crate::{Allocation, ClusterView};

/// Places grants on GPUs of one kind: whoever has what it gets stays, then the largest go first.
pub(super) fn place(
    view: &ClusterView<'_>,
    free: &mut FreeGpus,
    kind: GpuType,
    mut grants: Vec<Grant<'_>>,
    granted: &mut [Option<Allocation>],
) {
    grants.retain(|Grant { seeker, size }| {
        let held = seeker.job.allocation;
        if seeker.leased.is_some() {
            return *size > held.replicas();
        }
        let stays =
            held.replicas() == *size && kind_of(held, view) == Some(kind) && free.keep(seeker.job.per_replica(), held);
        if stays {
            granted[seeker.idx] = Some(held.clone());
        }
        !stays
    });
    grants.sort_by_key(|grant| (Reverse(grant.seeker.gpus() * grant.size), grant.seeker.idx));
    let (mut trial, mut placed) = (free.clone(), Vec::with_capacity(grants.len()));
    for Grant { seeker, .. } in grants.iter().filter(|grant| grant.seeker.leased.is_some()) {
        trial.give_back(seeker.job.per_replica(), seeker.job.allocation);
    }
    for Grant { seeker, size } in &grants {
        placed.extend(trial.take_consolidated(kind, seeker.job.per_replica(), *size));
    }
    if placed.len() == grants.len() {
        *free = trial;
        for (grant, allocation) in grants.iter().zip(placed) {
            granted[grant.seeker.idx] = Some(allocation);
        }
    } else {
        place_what_fits(free, kind, &grants, granted);
    }
}

/// Places grants of which some do not fit as they are, because replicas of several GPUs leave gaps: nobody loses its
/// lease, and who has none gets as much as there is room for.
fn place_what_fits(free: &mut FreeGpus, kind: GpuType, grants: &[Grant<'_>], granted: &mut [Option<Allocation>]) {
    let (growing, starting): (Vec<&Grant<'_>>, Vec<&Grant<'_>>) =
        grants.iter().partition(|grant| grant.seeker.leased.is_some());
    for Grant { seeker, size } in starting {
        let mut sizes = (*seeker.sizes.start()..=*size).rev();
        granted[seeker.idx] = sizes.find_map(|size| free.take_consolidated(kind, seeker.job.per_replica(), size));
    }
    for Grant { seeker, size } in growing {
        let (held, replica) = (seeker.job.allocation, seeker.job.per_replica());
        free.give_back(replica, held);
        let grown = free.take_consolidated(kind, replica, *size);
        if grown.is_none() {
            free.pin(replica, held);
        }
        granted[seeker.idx] = grown.or_else(|| Some(held.clone()));
    }
}
