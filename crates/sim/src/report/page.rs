use super::data::PageData;
use crate::RunOutcome;

const TEMPLATE: &str = include_str!("page.html");
/// The dashboard draws reports, too: both have one design, and one script.
const STYLES: [&str; 2] = [include_str!("../../../../dashboard/src/style/tokens.css"), include_str!("page.css")];
const SCRIPTS: [&str; 4] =
    [include_str!("chart.js"), include_str!("curves.js"), include_str!("timeline.js"), include_str!("page.js")];

/// What decided the outcomes, for the head of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageHeader {
    /// Who made them.
    pub build: String,
    /// Names and values of settings.
    pub settings: Vec<(String, String)>,
}

/// One page of HTML that needs nothing but itself. Runs of one workload and seed stand together; those that recorded
/// no series have no plots over time.
pub fn report_page(header: &PageHeader, runs: &[RunOutcome]) -> String {
    let data = serde_json::to_string(&PageData::new(header, runs)).expect("numbers and names are JSON");
    // No name may end the script that holds it.
    let data = data.replace('<', "\\u003c");
    let parts = [("{{style}}", &STYLES.concat()), ("{{data}}", &data), ("{{script}}", &script())];
    let mut page = String::with_capacity(TEMPLATE.len() + data.len() + 50_000);
    let mut rest = TEMPLATE;
    // In the order of the template, so that what was filled in is never searched again.
    for (place, part) in parts {
        let (before, after) = rest.split_once(place).expect("the template is ours");
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page + rest
}

/// All scripts as one: what they import from each other is there.
fn script() -> String {
    let lines = SCRIPTS.iter().flat_map(|script| script.lines()).filter(|line| !line.starts_with("import "));
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApplicationName, JobOutcome};

    fn outcome(name: &str) -> RunOutcome {
        let job = JobOutcome {
            name: name.to_owned(),
            application: ApplicationName::Ncf,
            submitted_s: 5.0,
            started_s: 60.0,
            finished_s: 100.0,
            failure: None,
            restarts: 0,
            gpu_seconds: 40.0,
            queued_s: 55.0,
            rho: 1.5,
            efficiency: 1.0,
            series: Vec::new(),
        };
        RunOutcome {
            policy: "fifo".to_owned(),
            workload: "w".to_owned(),
            seed: Some(3),
            gpus: 4,
            avg_gpus: 4.0,
            node_hours: 0.1,
            jobs: vec![job],
            cluster: Vec::new(),
        }
    }

    #[test]
    fn names_cannot_leave_their_script() {
        let page = report_page(&PageHeader::default(), &[outcome("</script><b>{{data}}")]);
        assert!(!page.contains("</script><b>"));
        assert!(page.contains(r"\u003c/script>\u003cb>{{data}}"));
        assert_eq!(page.matches("{{").count(), 1, "every other place is filled");
    }
}
