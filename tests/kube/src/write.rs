//! What the API server has seen of programs in pods: the proof of who has changed what, and when.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::error::{TestbedError, at};

/// One change that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// When it was asked for: RFC 3339 in UTC with microseconds, so that later is greater.
    pub at: String,
    /// The pod that asked.
    pub pod: String,
    /// `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// Such as `pods` or `polluxjobs/status`.
    pub resource: String,
    /// Its name, unless it is only made.
    pub name: String,
    /// The HTTP status of the answer.
    pub status: u16,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    user: User,
    object_ref: Option<Object>,
    response_status: Option<Answer>,
    request_received_timestamp: String,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    code: u16,
}

impl Write {
    pub(crate) fn read(path: &Path) -> Result<Vec<Self>, TestbedError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other.map_err(at(path))?,
        };
        // The last line may be about to be written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().map(serde_json::from_str::<Line>).collect::<Result<Vec<_>, _>>();
        let mut writes: Vec<Self> =
            lines.map_err(io::Error::other).map_err(at(path))?.into_iter().filter_map(Self::of).collect();
        writes.sort_by(|a, b| a.at.cmp(&b.at));
        Ok(writes)
    }

    fn of(line: Line) -> Option<Self> {
        let pod = line.user.extra.get("authentication.kubernetes.io/pod-name")?.first()?.clone();
        let object = line.object_ref.unwrap_or_default();
        let resource = match object.subresource.as_str() {
            "" => object.resource,
            part => format!("{}/{part}", object.resource),
        };
        Some(Self {
            at: line.request_received_timestamp,
            pod,
            verb: line.verb,
            resource,
            name: object.name,
            status: line.response_status.map_or(0, |answer| answer.code),
        })
    }

    /// Whether it was done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_pods_are_in_the_order_in_which_they_were_asked_for() {
        let line = |at: &str, extra: &str, code: u16| {
            format!(
                r#"{{"verb":"patch","user":{{"username":"u"{extra}}},"objectRef":{{"resource":"polluxjobs","subresource":"status","name":"a"}},"responseStatus":{{"code":{code}}},"requestReceivedTimestamp":"{at}"}}"#
            )
        };
        let pod = r#","extra":{"authentication.kubernetes.io/pod-name":["pollux-1"]}"#;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (late, early) = ("2026-01-01T00:00:02.000001Z", "2026-01-01T00:00:01.999999Z");
        let text = [line(late, pod, 409), line(early, pod, 200), line(early, "", 200), "{\"half".to_owned()];
        fs::write(&path, text.join("\n")).unwrap();
        let writes = Write::read(&path).unwrap();
        let seen: Vec<_> = writes.iter().map(|it| (it.at.as_str(), it.resource.as_str(), it.is_done())).collect();
        assert_eq!(seen, [(early, "polluxjobs/status", true), (late, "polluxjobs/status", false)]);
    }
}
