//! Which GPUs of a pod each of its replicas sees.

use crate::Place;

/// What `CUDA_VISIBLE_DEVICES` is for each replica: its own GPUs and no others, as everywhere else. Processes of one container
/// reach each other's GPUs by NVLink all the same. `None` where the template says something else.
///
/// `set` is what the variable is for the container, and `given` what the device plugin has put into `NVIDIA_VISIBLE_DEVICES`,
/// which need not be a list.
pub(crate) fn visible(places: &[Place], set: Option<&str>, given: Option<&str>) -> Vec<Option<String>> {
    let count: usize = places.iter().map(|place| place.gpus as usize).sum();
    let list = |text: &str| -> Option<Vec<String>> {
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        (names.len() == count && names.iter().all(|name| is_name(name))).then_some(names)
    };
    let devices = match set {
        Some(set) => list(set),
        // A container's GPUs are numbered from 0.
        None => given.and_then(list).or_else(|| Some((0..count).map(|idx| idx.to_string()).collect())),
    };
    let Some(devices) = devices else { return vec![None; places.len()] };
    let mut devices = devices.into_iter();
    places.iter().map(|place| Some(devices.by_ref().take(place.gpus as usize).collect::<Vec<_>>().join(","))).collect()
}

/// Whether it names a GPU: a number, or an identifier that says of what kind it is. Such as `void` and `all` name none.
fn is_name(name: &str) -> bool {
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    is_number || ["GPU-", "MIG-"].iter().any(|kind| name.starts_with(kind))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pollux_backend::ReplicaId;

    use super::*;

    fn seen(gpus: &[u32], set: Option<&str>, given: Option<&str>) -> Vec<String> {
        let place = |gpus: &u32| Place { replica: ReplicaId(1), gpus: *gpus, environment: BTreeMap::new() };
        let places: Vec<Place> = gpus.iter().map(place).collect();
        visible(&places, set, given).into_iter().map(|seen| seen.unwrap_or_else(|| "as it is".to_owned())).collect()
    }

    #[test]
    fn each_replica_sees_its_own_part_of_what_the_device_plugin_gave() {
        assert_eq!(seen(&[1, 1], None, Some("GPU-a,GPU-b")), ["GPU-a", "GPU-b"]);
        assert_eq!(seen(&[2, 2], None, Some("GPU-a,GPU-b,GPU-c,GPU-d")), ["GPU-a,GPU-b", "GPU-c,GPU-d"]);
        assert_eq!(seen(&[1, 1], Some("3,1"), Some("GPU-a,GPU-b")), ["3", "1"]);
    }

    #[test]
    fn without_a_list_they_are_numbered_from_0() {
        for given in [None, Some("void"), Some("all"), Some("GPU-a"), Some("runtime.nvidia.com/gpu=0,nvidia.com/gpu=1")]
        {
            assert_eq!(seen(&[1, 1], None, given), ["0", "1"], "{given:?}");
        }
    }

    #[test]
    fn what_a_template_sets_otherwise_is_left_as_it_is() {
        assert_eq!(seen(&[1, 1], Some(""), Some("GPU-a,GPU-b")), ["as it is", "as it is"]);
        assert_eq!(seen(&[0], None, None), [""]);
    }
}
