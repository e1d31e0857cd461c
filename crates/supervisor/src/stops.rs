//! What a stop says of whom.

use std::collections::BTreeMap;
use std::time::Duration;

use pollux_backend::ReplicaId;

use crate::STOP_ANNOTATION;

/// What the annotation says so that these replicas, and if it is `all` whoever there is, end within their graces.
pub fn stops_text(stops: &BTreeMap<ReplicaId, Duration>, all: bool) -> String {
    let ms = |grace: &Duration| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let mut graces: Vec<u64> = stops.values().map(ms).collect();
    graces.dedup();
    match graces.as_slice() {
        [grace] if all => grace.to_string(),
        _ => stops.iter().map(|(id, grace)| format!("{}={}", id.0, ms(grace))).collect::<Vec<_>>().join(" "),
    }
}

/// The stop that annotations ask for, as a kubelet writes them: `name="value"`, each in a line.
pub(crate) fn stop_in(annotations: &str) -> Option<&str> {
    let value = annotations.lines().find_map(|line| line.strip_prefix(STOP_ANNOTATION)?.strip_prefix('='))?;
    Some(value.trim_matches('"'))
}

/// The grace that a stop gives to a replica, if it is to end. A pod with one replica does not know its number.
pub(crate) fn grace_in(stop: &str, replica: Option<ReplicaId>) -> Option<Duration> {
    if let Ok(ms) = stop.parse() {
        return Some(Duration::from_millis(ms));
    }
    let own = stop
        .split(' ')
        .filter_map(|one| one.split_once('='))
        .find(|(id, _)| id.parse().ok() == replica.map(|id| id.0))?;
    own.1.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId(17);
    const B: ReplicaId = ReplicaId(18);

    fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    #[test]
    fn a_stop_is_found_among_other_annotations() {
        let text = "kubernetes.io/config=\"a=b\"\npollux.dev/stop=\"2500\"\npollux.dev/epoch=\"3\"";
        assert_eq!(stop_in(text), Some("2500"));
        assert_eq!(stop_in("pollux.dev/stopped=\"1\""), None);
        assert_eq!(
            (grace_in("2500", None), grace_in("2500", Some(A)), grace_in("soon", None)),
            (ms(2500), ms(2500), None)
        );
    }

    #[test]
    fn some_of_several_are_stopped_each_in_its_time() {
        let stops = |pairs: &[(ReplicaId, u64)], all| {
            stops_text(&pairs.iter().map(|(id, ms)| (*id, Duration::from_millis(*ms))).collect(), all)
        };
        assert_eq!(stops(&[(A, 5), (B, 5)], true), "5");
        let single = stops(&[(B, 5)], false);
        assert_eq!((single.as_str(), grace_in(&single, Some(A)), grace_in(&single, Some(B))), ("18=5", None, ms(5)));
        let both = stops(&[(A, 0), (B, 5)], true);
        assert_eq!((both.as_str(), grace_in(&both, Some(A)), grace_in(&both, Some(B))), ("17=0 18=5", ms(0), ms(5)));
        assert_eq!(grace_in(&both, None), None);
    }
}
