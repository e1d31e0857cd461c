use std::fmt;
use std::str::FromStr;

use crate::JobId;

/// A job that has to end before another may start. Written `12`, or `12:end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "Written"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Dependency {
    /// The job that goes first.
    pub job: JobId,
    /// How it has to end.
    pub after: After,
}

/// How a job has to end before the one that waits for it may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum After {
    /// It has trained to its end.
    #[default]
    Success,
    /// It has ended, however that was.
    End,
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job: JobId(job), after } = self;
        match after {
            After::Success => write!(f, "{job}"),
            After::End => write!(f, "{job}:end"),
        }
    }
}

impl FromStr for Dependency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (job, after) = match text.split_once(':') {
            None | Some((_, "success")) => (text.trim_end_matches(":success"), After::Success),
            Some((job, "end")) => (job, After::End),
            Some(_) => (text, After::Success),
        };
        let job = job.parse().map_err(|_| format!("{text:?}: expected a job's number, or NUMBER:end"))?;
        Ok(Self { job: JobId(job), after })
    }
}

/// As it is read: a number, a text, or both parts by name.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
#[serde(
    untagged,
    expecting = "expected a job's number, \"NUMBER:end\", or {\"job\": NUMBER, \"after\": \"success\"|\"end\"}"
)]
enum Written {
    Number(u64),
    Text(String),
    #[serde(rename_all = "snake_case")]
    Parts {
        job: JobId,
        #[serde(default)]
        after: After,
    },
}

#[cfg(feature = "serde")]
impl TryFrom<Written> for Dependency {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        match written {
            Written::Number(job) => Ok(Self { job: JobId(job), after: After::Success }),
            Written::Text(text) => text.parse(),
            Written::Parts { job, after } => Ok(Self { job, after }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_is_read_as_it_is_written() {
        for (text, after) in [("7", After::Success), ("7:end", After::End)] {
            let dependency: Dependency = text.parse().unwrap();
            assert_eq!(dependency, Dependency { job: JobId(7), after });
            assert_eq!(dependency.to_string(), text);
        }
        assert_eq!("7:success".parse(), Ok(Dependency { job: JobId(7), after: After::Success }));
        for text in ["", "x", "7:", "7:failure", ":end", "-1"] {
            assert_eq!(
                text.parse::<Dependency>(),
                Err(format!("{text:?}: expected a job's number, or NUMBER:end")),
                "{text}"
            );
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn files_and_requests_may_write_it_in_three_ways() {
        let read = |text: &str| serde_json::from_str::<Dependency>(text);
        let expected = Dependency { job: JobId(7), after: After::End };
        assert_eq!(read(r#""7:end""#).unwrap(), expected);
        assert_eq!(read(r#"{"job": 7, "after": "end"}"#).unwrap(), expected);
        assert_eq!(read(&serde_json::to_string(&expected).unwrap()).unwrap(), expected);
        assert_eq!(read("7").unwrap(), Dependency { job: JobId(7), after: After::Success });
        assert!(read("true").unwrap_err().to_string().contains("expected a job's number"));
    }
}
