use std::fs;

use super::{folder, sim};

#[test]
fn the_page_is_one_file_that_asks_for_nothing_outside() {
    let folder = folder("page").join("deep/er");
    let args = ["compare", "--policy", "pollux,fifo", "--generate-jobs", "8", "--report", folder.to_str().unwrap()];
    let result = sim(&args);
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["index.html"]);
    let page = fs::read_to_string(folder.join("index.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for outside in ["http://", "https://", "src=", "@import", "url(", "fetch("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for shown in
        ["prefers-color-scheme: dark", "\"pollux\"", "\"fifo\"", "generated-0", "\"16x4 (64 GPUs)\"", "\"seed\":0"]
    {
        assert!(page.contains(shown), "{shown}");
    }
    assert!(!page.contains("NaN,") && page.len() < 3_000_000);
}

#[test]
fn the_same_simulation_gives_the_same_page() {
    let folders = [folder("page-one"), folder("page-two")];
    for folder in &folders {
        sim(&["run", "--generate-jobs", "4", "--report", folder.to_str().unwrap()]);
    }
    let pages = folders.map(|folder| fs::read(folder.join("index.html")).unwrap());
    assert_eq!(pages[0], pages[1]);
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_the_work() {
    let file = folder("page-file").join("file");
    fs::write(&file, "").unwrap();
    let path = file.join("report");
    let result = sim(&["run", "--generate-jobs", "100000", "--report", path.to_str().unwrap()]);
    assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""));
    assert!(result.stderr.starts_with(&format!("error: report {}: ", path.display())), "{}", result.stderr);
    assert!(result.stderr.ends_with("; expected a folder that can be written\n"), "{}", result.stderr);
}

#[test]
fn a_page_outlives_runs_that_fail() {
    let folder = folder("page-kept");
    let page = folder.join("index.html");
    fs::write(&page, "before").unwrap();
    let large = folder.join("large.csv");
    fs::write(&large, "name,time,application,num_replicas,batch_size\na,0,cifar10,65,4096\n").unwrap();
    let report = ["run", "--generate-jobs", "4", "--report", folder.to_str().unwrap()];
    for mistake in [["--interval", "0"], ["--cluster", "0x4"], ["--workload", large.to_str().unwrap()]] {
        assert_eq!(sim(&[&report[..], &mistake].concat()).code, Some(2), "{mistake:?}");
        assert_eq!(fs::read_to_string(&page).unwrap(), "before", "{mistake:?}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "{mistake:?}");
    }
    assert_eq!(sim(&report).code, Some(0));
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!doctype html>"));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
}
