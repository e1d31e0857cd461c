use std::collections::BTreeSet;

use pollux_client::Client;

use crate::output::one_line;

/// What to know of a job that allows only types of GPU that no node has; nothing if one has, or if that is not known.
pub(super) fn warning(client: &Client, wanted: &[String]) -> Option<String> {
    if wanted.is_empty() {
        return None;
    }
    let nodes = client.nodes().ok()?.nodes;
    let there: BTreeSet<&str> = nodes.iter().map(|node| node.gpu_type.as_str()).collect();
    if wanted.iter().any(|name| there.contains(name.as_str())) {
        return None;
    }
    let list = |names: &mut dyn Iterator<Item = &str>| names.map(one_line).collect::<Vec<_>>().join(", ");
    let wanted = list(&mut wanted.iter().map(String::as_str));
    let there = match there.is_empty() {
        true => "there is no node yet".to_owned(),
        false => format!("there are {}", list(&mut there.into_iter())),
    };
    Some(format!("no node has GPUs of type {wanted}: it waits until one has; {there}"))
}
