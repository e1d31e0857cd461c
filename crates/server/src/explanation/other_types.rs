//! What another type of GPU would be worth to a job.

use pollux_api as api;
use pollux_engine::Job;

use super::percent;
use crate::Cluster;

/// Changes below this are none.
const CHANGE_MIN: f64 = 0.0005;

/// What a job is expected to do on each type, ordered by name, in a cluster that has several.
pub(super) fn types(cluster: &Cluster<'_>, job: &Job) -> Vec<api::TypeOutlook> {
    let engine = cluster.engine();
    let mut present = engine.nodes().map(pollux_engine::Node::gpu_type);
    let first = present.next();
    if present.all(|other| Some(other) == first) {
        return Vec::new();
    }
    let outlooks = engine.type_outlook(job.id());
    let here = engine.gpu_type_of(job.id()).and_then(|name| engine.gpu_type(name));
    let now = outlooks.iter().find(|outlook| Some(outlook.gpu_type) == here).map(|outlook| outlook.choice.goodput);
    let told = outlooks.iter().filter_map(|outlook| {
        let (choice, there) = (outlook.choice, outlook.choice.goodput);
        let change = now.filter(|now| *now > 0.0 && Some(outlook.gpu_type) != here).map(|now| there / now - 1.0);
        Some(api::TypeOutlook {
            gpu_type: engine.gpu_type_name(outlook.gpu_type)?.to_string(),
            replicas: choice.shape.replicas(),
            nodes: choice.shape.nodes(),
            batch_size: u64::from(choice.batch_size()),
            samples_per_s: choice.throughput,
            goodput: there,
            change,
            is_estimated: outlook.is_estimated,
        })
    });
    let mut told: Vec<api::TypeOutlook> = told.collect();
    told.sort_by(|a, b| a.gpu_type.cmp(&b.gpu_type));
    told
}

/// A sentence for each other type, and one for the present one if nothing was measured there yet.
pub(super) fn worth_of_types(types: &[api::TypeOutlook]) -> impl Iterator<Item = String> + '_ {
    let has_now = types.iter().any(|outlook| outlook.change.is_some());
    types.iter().filter_map(move |outlook| {
        let name = &outlook.gpu_type;
        let estimated = if outlook.is_estimated { ", which is an estimate: it never ran there" } else { "" };
        match outlook.change {
            Some(change) if change > CHANGE_MIN => {
                Some(format!("On {name} its goodput would rise by {}{estimated}.", percent(change)))
            }
            Some(change) if change < -CHANGE_MIN => {
                Some(format!("On {name} its goodput would fall by {}{estimated}.", percent(-change)))
            }
            Some(_) => Some(format!("On {name} its goodput would be the same{estimated}.")),
            None if has_now && outlook.is_estimated => {
                Some(format!("It was not measured on {name} yet: what it does there is an estimate."))
            }
            None => None,
        }
    })
}
