use super::{command, run};

/// The notes of a run, without their prefix.
fn notes(args: &[&str], csv: &str) -> Vec<String> {
    let result = run(command().arg("-").args(args), csv.as_bytes());
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    let note = |line: &str| line.strip_prefix("note: ").expect("every line is a note").to_owned();
    result.stderr.lines().map(note).collect()
}

/// Rows of placements with local batches 8 and 16, of which one GPU takes the baseline 16 whole.
fn placements(placements: &[&str]) -> String {
    let mut csv = "placement,local_bsz,step_time,sync_time\n".to_owned();
    for placement in placements {
        let sync_s = if *placement == "1" { 0.0 } else { 0.1 };
        csv += &format!("{placement},8,{},{sync_s}\n{placement},16,{},{sync_s}\n", 0.3 + sync_s, 0.5 + sync_s);
    }
    csv
}

#[test]
fn notes_say_what_was_assumed() {
    let single = "placement,local_bsz,step_time,sync_time\n1,8,0.5,0\n";
    assert_eq!(
        notes(&["--gpus", "2"], single),
        [
            "efficiency is assumed to be 1 at any batch; give a noise_scale (samples) to predict it",
            "no step was measured on several GPUs; synchronisation is assumed to cost nothing",
            "only local batch 8 was measured; half of its time is assumed to be overhead",
        ]
    );
}

#[test]
fn notes_say_where_nothing_was_measured() {
    let check = |measured: &[&str], args: &[&str], expected: &[&str]| {
        let known = ["--noise-scale", "inf", "--batch-size", "16"];
        assert_eq!(notes(&[&known, args].concat(), &placements(measured)), expected, "{measured:?} {args:?}");
    };
    let between = "no step was measured on several nodes; links between nodes are assumed to cost a tenth more than those \
                   within";
    let within = "no step was measured on several GPUs of one node; synchronisation there is assumed to cost nothing";
    let further = |placed: &str| {
        format!("no step was measured on more than 2 GPUs{placed}; further ones are assumed to cost no synchronisation")
    };
    check(&["1", "2", "4", "44"], &[], &[]);
    check(&["1", "2", "3"], &[], &[]);
    check(
        &["1", "2", "4"],
        &["--gpus", "5", "--gpus-per-node", "8"],
        &["no step was measured on more than 4 GPUs; rows beyond are extrapolated"],
    );
    check(
        &["1", "2", "4"],
        &["--gpus", "8"],
        &[between, "no step was measured on more than 4 GPUs; rows beyond are extrapolated"],
    );
    check(&["1", "2"], &["--gpus", "3"], &[between, &further("")]);
    check(&["1", "22"], &[], &[within]);
    check(&["1", "11"], &["--gpus", "2"], &[]);
    check(&["1", "11"], &["--gpus", "4", "--gpus-per-node", "4"], &[within, &further("")]);
    check(&["1", "2", "22"], &["--gpus-per-node", "4"], &[&further(" of one node")]);
    check(&["1", "2", "4", "11"], &["--gpus-per-node", "2"], &[&further(" over several nodes")]);
}

#[test]
fn a_note_says_when_predictions_are_far_off() {
    let off = |csv: &str| notes(&["--noise-scale", "inf", "--batch-size", "16"], csv);
    let other_job = placements(&["1", "2", "4"]).replace(",0.", ",0.0").replace(",8,", ",4,").replace(",16,", ",12,");
    let pooled = placements(&["1", "2", "4"]) + other_job.split_once('\n').unwrap().1;
    let [note] = &off(&pooled)[..] else { panic!("one note: {:?}", off(&pooled)) };
    let (percent, advice) = note.strip_prefix("predicted step times are ").unwrap().split_once('%').unwrap();
    assert!(percent.parse::<f64>().unwrap() > 10.0, "{note}");
    assert_eq!(
        advice,
        " off on average, too much to rely on the answer; measure more configurations, or fit each job alone if several \
         are pooled"
    );
    assert_eq!(off(&placements(&["1", "2", "4"])), Vec::<String>::new());
}

#[test]
fn a_note_says_why_one_gpu_accumulates() {
    let note =
        |batch_size: &str| notes(&["--noise-scale", "inf", "--batch-size", batch_size], &placements(&["1", "2"]));
    assert_eq!(
        note("8"),
        ["on 1 GPU a batch above the baseline of 8 takes two micro-batches or more, because one gradient alone tells \
          nothing of its noise; give a batch_size if the job's baseline is larger"]
    );
    assert_eq!(note("16"), Vec::<String>::new(), "the baseline runs whole");
    assert_eq!(note("32"), Vec::<String>::new(), "the baseline needs accumulation anyway");
}

#[test]
fn a_note_says_when_the_default_maximum_leaves_no_batch() {
    let job = placements(&["1", "2", "3"]);
    let args = ["--noise-scale", "inf", "--batch-size", "100"];
    let settings = run(command().args(["-", "-o", "json"]).args(args), job.as_bytes()).json()["settings"].clone();
    assert_eq!(settings["batch_size_max"], 100, "the maximum rises to the baseline");
    assert_eq!(
        notes(&args, &job),
        ["1 of 3 counts of GPUs have no batch within 100..100; give a max_batch_size above 100, which is only the \
          default"]
    );
    assert_eq!(notes(&[&args[..], &["--max-batch-size", "102"]].concat(), &job), Vec::<String>::new());
    assert_eq!(notes(&[&args[..], &["--max-batch-size", "101"]].concat(), &job), Vec::<String>::new());
}
