use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::{fs, io};

use crate::WorkerError;

/// Schedulers of version 0.1 have one machine.
const LOOPBACK: &str = "127.0.0.1";

/// Where the scheduler is and who speaks to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Connection {
    /// Address of the server, like `http://127.0.0.1:7878`.
    pub url: String,
    /// The job, as the server names it.
    pub job: String,
    /// This process's own number.
    pub replica: u64,
    /// What proves that it belongs to the job.
    pub token: Token,
    /// The group it was started for.
    pub generation: u64,
    /// The host under which the others of its group reach it.
    pub host: String,
    /// The authorities that vouch for the server, a PEM file; without one those that the world knows do.
    pub authority: Option<PathBuf>,
}

// Whatever prints a connection must not show the token.
impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Connection");
        shown.field("url", &self.url).field("job", &self.job).field("replica", &self.replica);
        shown.field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// What proves that a worker belongs to its job.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// The scheduler has given it.
    Given(String),
    /// Somebody else keeps it in a file, and may replace it at any time.
    File(PathBuf),
}

impl Token {
    /// As it is now.
    pub(crate) fn read(&self) -> io::Result<String> {
        match self {
            Self::Given(token) => Ok(token.clone()),
            Self::File(file) => Ok(fs::read_to_string(file)?.trim().to_owned()),
        }
    }
}

impl Connection {
    /// From `POLLUX_URL`, `POLLUX_JOB_ID`, `POLLUX_REPLICA_ID`, `POLLUX_GENERATION` and `POLLUX_TOKEN` or
    /// `POLLUX_TOKEN_FILE`, perhaps with `POLLUX_HOST_ADDRESS` and `POLLUX_CA_FILE`; `None` where there is no job. People
    /// set address and token for the command line, too.
    pub fn from_env() -> Result<Option<Self>, WorkerError> {
        Self::read(|name| std::env::var_os(name))
    }

    fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, WorkerError> {
        let file = lookup("POLLUX_TOKEN_FILE").filter(|file| !file.is_empty()).map(PathBuf::from);
        let token = if file.is_some() { "POLLUX_TOKEN_FILE" } else { "POLLUX_TOKEN" };
        let names = ["POLLUX_JOB_ID", "POLLUX_URL", "POLLUX_REPLICA_ID", token, "POLLUX_GENERATION"];
        if lookup(names[0]).is_none() {
            return Ok(None);
        }
        let Some([job, url, replica, token, generation]) = all_or_none(names, &lookup)? else { return Ok(None) };
        let scheme_known = url.starts_with("http://") || (cfg!(feature = "rustls") && url.starts_with("https://"));
        if !scheme_known {
            let accepted =
                if cfg!(feature = "rustls") { "an http:// or https:// address" } else { "an http:// address" };
            return Err(WorkerError::Variable { name: names[1], value: url, accepted });
        }
        if job.is_empty() || !job.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter)) {
            let accepted = "letters, digits and -_. only";
            return Err(WorkerError::Variable { name: names[0], value: job, accepted });
        }
        Ok(Some(Self {
            url: url.trim_end_matches('/').to_owned(),
            job,
            replica: parse(names[2], &replica, "a whole number")?,
            token: file.map_or(Token::Given(token), Token::File),
            generation: parse(names[4], &generation, "a whole number")?,
            host: match all_or_none(["POLLUX_HOST_ADDRESS"], &lookup)? {
                Some([host]) => host,
                None => LOOPBACK.to_owned(),
            },
            authority: lookup("POLLUX_CA_FILE").filter(|file| !file.is_empty()).map(PathBuf::from),
        }))
    }
}

/// Place of a process in the group it was started for, as `torchrun` and others tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Place in the group.
    pub rank: u32,
    /// Processes of the group.
    pub world_size: u32,
    /// Place among those of the same node.
    pub local_rank: u32,
    /// Processes of the group on the same node.
    pub local_world_size: u32,
    /// Host on which rank 0 waits for the others.
    pub master_address: String,
    /// Port on which rank 0 waits for the others.
    pub master_port: u16,
}

impl Ranks {
    /// From `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`; `None` where none of them is set. Without
    /// `LOCAL_RANK` and `LOCAL_WORLD_SIZE` there is one node.
    pub fn from_env() -> Result<Option<Self>, WorkerError> {
        Self::read(|name| std::env::var_os(name))
    }

    fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, WorkerError> {
        let names = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];
        let Some([rank, world_size, master_address, master_port]) = all_or_none(names, &lookup)? else {
            return Ok(None);
        };
        let world_size: u32 = parse_where(names[1], &world_size, "1 or more", |&size| size > 0)?;
        let below_world = |&rank: &u32| rank < world_size;
        let rank = parse_where(names[0], &rank, "a whole number below WORLD_SIZE", below_world)?;
        let local = ["LOCAL_RANK", "LOCAL_WORLD_SIZE"];
        let (local_rank, local_world_size) = match all_or_none(local, &lookup)? {
            None => (rank, world_size),
            Some([local_rank, local_world_size]) => {
                let within = |&size: &u32| (1..=world_size).contains(&size);
                let size = parse_where(local[1], &local_world_size, "from 1 to WORLD_SIZE", within)?;
                let below = |&rank: &u32| rank < size;
                (parse_where(local[0], &local_rank, "a whole number below LOCAL_WORLD_SIZE", below)?, size)
            }
        };
        let master_port = parse(names[3], &master_port, "a port number")?;
        Ok(Some(Self { rank, world_size, local_rank, local_world_size, master_address, master_port }))
    }
}

fn all_or_none<const COUNT: usize>(
    names: [&'static str; COUNT],
    lookup: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<[String; COUNT]>, WorkerError> {
    let found = names.map(&lookup);
    let Some(present) = found.iter().position(Option::is_some) else { return Ok(None) };
    let mut values = [const { String::new() }; COUNT];
    for ((value, text), name) in values.iter_mut().zip(found).zip(names) {
        let text = text.ok_or(WorkerError::HalfSet { missing: name, present: names[present] })?;
        *value = text.into_string().map_err(|text| WorkerError::Variable {
            name,
            value: text.to_string_lossy().into_owned(),
            accepted: "UTF-8 text",
        })?;
    }
    Ok(Some(values))
}

fn parse<T: FromStr>(name: &'static str, value: &str, accepted: &'static str) -> Result<T, WorkerError> {
    parse_where(name, value, accepted, |_| true)
}

fn parse_where<T: FromStr>(
    name: &'static str,
    value: &str,
    accepted: &'static str,
    accept: impl Fn(&T) -> bool,
) -> Result<T, WorkerError> {
    let parsed = value.parse().ok().filter(accept);
    parsed.ok_or_else(|| WorkerError::Variable { name, value: value.to_owned(), accepted })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLLUX: [(&str, &str); 5] = [
        ("POLLUX_URL", "http://127.0.0.1:7878/"),
        ("POLLUX_JOB_ID", "12"),
        ("POLLUX_REPLICA_ID", "17"),
        ("POLLUX_TOKEN", "secret"),
        ("POLLUX_GENERATION", "3"),
    ];
    const RANKS: [(&str, &str); 6] = [
        ("RANK", "2"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "4711"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "2"),
    ];

    fn lookup<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    fn changed<const COUNT: usize>(
        variables: [(&'static str, &'static str); COUNT],
        name: &str,
        value: &'static str,
    ) -> [(&'static str, &'static str); COUNT] {
        variables.map(|(key, old)| (key, if key == name { value } else { old }))
    }

    #[test]
    fn without_any_variable_there_is_no_scheduler_and_no_group() {
        assert_eq!(Connection::read(lookup(&[])).unwrap(), None);
        assert_eq!(Ranks::read(lookup(&[])).unwrap(), None);
        assert_eq!(Connection::read(lookup(&[POLLUX[0], POLLUX[3]])).unwrap(), None, "that is for the command line");
    }

    #[test]
    fn all_variables_make_a_connection_and_a_place() {
        let connection = Connection::read(lookup(&POLLUX)).unwrap().unwrap();
        assert_eq!((connection.url.as_str(), connection.job.as_str()), ("http://127.0.0.1:7878", "12"));
        assert_eq!((connection.replica, connection.generation), (17, 3));
        assert_eq!((connection.host.as_str(), connection.authority), ("127.0.0.1", None));
        let more = [("POLLUX_HOST_ADDRESS", "10.0.0.7"), ("POLLUX_CA_FILE", "/etc/ca.pem")];
        let remote = Connection::read(lookup(&[&POLLUX[..], &more[..]].concat())).unwrap().unwrap();
        assert_eq!((remote.host.as_str(), remote.authority), ("10.0.0.7", Some(PathBuf::from("/etc/ca.pem"))));
        let ranks = Ranks::read(lookup(&RANKS)).unwrap().unwrap();
        assert_eq!((ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_world_size), (2, 4, 0, 2));
        let bare = Ranks::read(lookup(&RANKS[..4])).unwrap().unwrap();
        assert_eq!((bare.local_rank, bare.local_world_size), (2, 4));
    }

    #[test]
    fn a_file_goes_before_a_token_and_is_read_whenever_one_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let variables = [&POLLUX[..], &[("POLLUX_TOKEN_FILE", file.to_str().unwrap())]].concat();
        let token = Connection::read(lookup(&variables)).unwrap().unwrap().token;
        assert!(token.read().is_err(), "it is not there yet");
        for text in ["first", "second\n"] {
            fs::write(&file, text).unwrap();
            assert_eq!(token.read().unwrap(), text.trim());
        }
    }

    #[test]
    fn half_of_the_variables_is_one_clear_line() {
        let error = Connection::read(lookup(&POLLUX[..2])).unwrap_err().to_string();
        assert_eq!(error, "POLLUX_REPLICA_ID is not set, but POLLUX_JOB_ID is; expected both or neither");
        assert!(Ranks::read(lookup(&RANKS[..2])).unwrap_err().to_string().starts_with("MASTER_ADDR is not set"));
        assert!(Ranks::read(lookup(&RANKS[..5])).unwrap_err().to_string().starts_with("LOCAL_WORLD_SIZE is not set"));
    }

    #[test]
    fn values_that_cannot_be_are_refused_by_name() {
        for (name, value, expected) in [
            ("POLLUX_URL", "ftp://x", "POLLUX_URL is \"ftp://x\"; expected an http:// "),
            ("POLLUX_JOB_ID", "../12", "POLLUX_JOB_ID is \"../12\"; expected letters"),
            ("POLLUX_REPLICA_ID", "-1", "POLLUX_REPLICA_ID is \"-1\"; expected a whole number"),
        ] {
            let error = Connection::read(lookup(&changed(POLLUX, name, value))).unwrap_err().to_string();
            assert!(error.replace("or https:// ", "").starts_with(expected), "{error}");
        }
        for (name, value) in [("RANK", "4"), ("WORLD_SIZE", "0"), ("MASTER_PORT", "65536"), ("LOCAL_RANK", "2")] {
            let error = Ranks::read(lookup(&changed(RANKS, name, value))).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name} is {value:?}; expected ")), "{error}");
        }
    }
}
