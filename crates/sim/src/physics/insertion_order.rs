use super::ApplicationName;

/// In which order measured shapes are triangulated. The files in `osdi21` repeat the choice of the published simulator
/// among equally good triangulations; shapes that they do not describe are taken as they come.
pub(super) fn insertion_order(name: ApplicationName, shapes: usize) -> Vec<usize> {
    let published: Vec<usize> =
        published(name).split_ascii_whitespace().map(|idx| idx.parse().expect("a test reads every order")).collect();
    if published.len() == shapes { published } else { (0..shapes).collect() }
}

const fn published(name: ApplicationName) -> &'static str {
    match name {
        ApplicationName::Bert => include_str!("../../osdi21/bert.txt"),
        ApplicationName::Cifar10 => include_str!("../../osdi21/cifar10.txt"),
        ApplicationName::Deepspeech2 => include_str!("../../osdi21/deepspeech2.txt"),
        ApplicationName::Imagenet => include_str!("../../osdi21/imagenet.txt"),
        ApplicationName::Ncf => include_str!("../../osdi21/ncf.txt"),
        ApplicationName::Yolov3 => include_str!("../../osdi21/yolov3.txt"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_names_every_shape_once() {
        for (name, shapes) in ApplicationName::ALL.into_iter().zip([350, 700, 434, 560, 1004, 278]) {
            let mut order = insertion_order(name, shapes);
            assert_ne!(order, (0..shapes).collect::<Vec<_>>());
            order.sort_unstable();
            assert_eq!(order, (0..shapes).collect::<Vec<_>>());
        }
    }

    #[test]
    fn other_shapes_are_taken_as_they_come() {
        assert_eq!(insertion_order(ApplicationName::Bert, 4), [0, 1, 2, 3]);
    }
}
