use pollux_client::Client;
use pollux_policy::{PolicySettings, Priorities};

/// What the cluster makes of a priority other than 0, where that is known.
pub(super) fn meaning(client: &Client, priority: i32) -> Option<String> {
    if priority == 0 {
        return None;
    }
    let policy = client.cluster().ok()?.policy;
    Some(match PolicySettings::named(&policy).ok()?.priorities() {
        Priorities::Ignored => format!("priorities make no difference under the policy {policy}"),
        Priorities::Opportunistic => format!("the policy {policy} only looks whether it is below 0"),
        Priorities::Ordered if priority < 0 => "it uses what other jobs leave".to_owned(),
        Priorities::Ordered => "higher goes first where GPUs are short".to_owned(),
    })
}
