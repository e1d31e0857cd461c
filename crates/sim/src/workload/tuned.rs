use super::Request;
use crate::Application;

/// Replica counts that users are assumed to ask for.
const REPLICAS: [u32; 10] = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48];
/// GPUs per node of the cluster the requests were tuned on.
const NODE_GPUS: u32 = 4;
/// Nobody is satisfied with a request that takes longer.
const COMPLETION_MAX_S: f64 = 12.0 * 3600.0;

/// The requests of users who measured their job beforehand, as the paper assumes for the schedulers it compares with:
/// each replica count that reaches 50 to 80% of linear speedup, with the batch that completes soonest there. Where none
/// does, a single GPU.
pub fn tuned_requests(application: &Application) -> Vec<Request> {
    let limits = application.limits();
    let mut single = None;
    let mut requests = Vec::new();
    for replicas in REPLICAS {
        if u64::from(replicas) * u64::from(limits.local_batch_min()) > u64::from(limits.batch_size_max()) {
            break;
        }
        let Some((batch_size, completion_s)) = best_batch(application, replicas) else { continue };
        let request = Request { replicas, batch_size };
        let Some((_, single_s)) = single else {
            single = Some((request, completion_s));
            continue;
        };
        let efficiency = single_s / completion_s / f64::from(replicas);
        if completion_s < COMPLETION_MAX_S && 0.5 < efficiency && efficiency < 0.8 {
            requests.push(request);
        }
    }
    if requests.is_empty() {
        let baseline = Request { replicas: 1, batch_size: limits.batch_size_baseline() };
        requests.push(single.map_or(baseline, |(request, _)| request));
    }
    requests
}

/// Those of the [`tuned_requests`] that a cluster of this many GPUs can serve; where it serves none, all of its GPUs.
pub(super) fn requests_within(application: &Application, replicas_max: u32) -> Vec<Request> {
    let mut requests = tuned_requests(application);
    let smallest = requests[0];
    requests.retain(|request| request.replicas <= replicas_max);
    if requests.is_empty() {
        let replicas = replicas_max.max(1);
        let batch_size = best_batch(application, replicas).map_or(smallest.batch_size, |(batch_size, _)| batch_size);
        requests.push(Request { replicas, batch_size });
    }
    requests
}

/// The batch that completes a whole training soonest on nodes filled one after the other, and the seconds that takes.
fn best_batch(application: &Application, replicas: u32) -> Option<(u32, f64)> {
    let limits = application.limits();
    let mut placement = vec![NODE_GPUS; (replicas / NODE_GPUS) as usize];
    placement.push(replicas % NODE_GPUS);
    let completion_s = |batch_size: u32| {
        let share = batch_size.div_ceil(replicas);
        let micro_batches = share.div_ceil(limits.local_batch_max());
        let time = application.step_time(&placement, share.div_ceil(micro_batches));
        application.iterations(application.epochs() - 1, batch_size) * time.with_accumulation(micro_batches - 1)
    };
    let large_enough = |&batch_size: &u32| batch_size.div_ceil(replicas) >= limits.local_batch_min();
    let candidates = application.batch_sizes().into_iter().filter(large_enough);
    candidates.map(|batch_size| (batch_size, completion_s(batch_size))).min_by(|a, b| a.1.total_cmp(&b.1))
}
