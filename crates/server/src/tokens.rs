use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pollux_backend_remote::NodeCaller;
use pollux_policy::JobId;
use pollux_store::TokenRow;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256 of a token.
pub(crate) type TokenDigest = [u8; 32];

/// The label of the token in the state folder.
pub(crate) const LOCAL_TOKEN: &str = "local";

/// Whom a token belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A user, who may do everything; by the label of the token.
    User(String),
    /// Somebody who may see the jobs of one owner and the cluster as a whole, and change nothing.
    Viewer(String),
    /// Somebody who may read the numbers of the scheduler, and nothing else.
    Monitor(String),
    /// The workers of a job, who may speak for it and nothing else.
    Job(JobId),
    /// A machine that has joined or may, which is told what to run and nothing else.
    Machine(NodeCaller),
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(label) => write!(f, "user {label}"),
            Self::Viewer(owner) => write!(f, "viewer of {owner}"),
            Self::Monitor(name) => write!(f, "monitor {name}"),
            Self::Job(job) => write!(f, "workers of {job}"),
            Self::Machine(machine) => write!(f, "{machine}"),
        }
    }
}

/// What tokens open, by their digests: the tokens themselves are not kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    known: Arc<RwLock<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    jobs: BTreeMap<TokenDigest, JobId>,
    users: BTreeMap<String, TokenDigest>,
}

impl Tokens {
    pub(crate) fn recovered(rows: &[TokenRow]) -> Self {
        let mut known = Known::default();
        for TokenRow { digest, job, label } in rows {
            match job {
                Some(job) => drop(known.jobs.insert(*digest, *job)),
                None => drop(known.users.insert(label.clone(), *digest)),
            }
        }
        Self { known: Arc::new(RwLock::new(known)) }
    }

    /// A token that opens a job, and the row to be kept of it.
    pub(crate) fn issue(&self, job: JobId) -> Result<(String, TokenRow), getrandom::Error> {
        let token = random()?;
        let digest = digest(&token);
        self.write().jobs.insert(digest, job);
        Ok((token, TokenRow { digest, job: Some(job), label: "workers".to_owned() }))
    }

    pub(crate) fn forget(&self, job: JobId) {
        self.write().jobs.retain(|_, of| *of != job);
    }

    /// A user's token is good from now on, in place of another with that label.
    pub(crate) fn grant(&self, label: String, digest: TokenDigest) {
        self.write().users.insert(label, digest);
    }

    pub(crate) fn revoke(&self, label: &str) {
        self.write().users.remove(label);
    }

    /// The digest of a user's token.
    pub(crate) fn of_user(&self, label: &str) -> Option<TokenDigest> {
        self.read().users.get(label).copied()
    }

    /// Labels of users' tokens.
    pub(crate) fn labels(&self) -> Vec<String> {
        self.read().users.keys().cloned().collect()
    }

    /// Whom a token belongs to. That of a job is found in a tree of digests: how long that takes tells something of
    /// digests, and nothing of tokens.
    pub(crate) fn caller(&self, token: &str) -> Option<Caller> {
        let digest = digest(token);
        let known = self.read();
        let mut user = None;
        for (label, of_user) in &known.users {
            if bool::from(of_user.ct_eq(&digest)) {
                user = Some(Caller::User(label.clone()));
            }
        }
        user.or_else(|| known.jobs.get(&digest).copied().map(Caller::Job))
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().expect("nobody panics with it")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().expect("nobody panics with it")
    }
}

/// A token that nobody can guess.
pub fn random() -> Result<String, getrandom::Error> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn digest(token: &str) -> TokenDigest {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_its_job_until_that_is_over_and_after_a_restart() {
        let tokens = Tokens::default();
        let (first, row) = tokens.issue(JobId(1)).unwrap();
        let (second, _) = tokens.issue(JobId(2)).unwrap();
        assert_eq!((first.len(), first == second), (64, false));
        let of = |job| Some(Caller::Job(JobId(job)));
        assert_eq!([&first, &second, "guess"].map(|token| tokens.caller(token)), [of(1), of(2), None]);
        tokens.forget(JobId(2));
        assert_eq!(tokens.caller(&second), None);
        assert_eq!(Tokens::recovered(&[row]).caller(&first), of(1));
    }

    #[test]
    fn a_users_token_opens_everything_until_it_is_taken_back() {
        let tokens = Tokens::default();
        tokens.grant("laptop".to_owned(), digest("secret"));
        assert_eq!(tokens.caller("secret"), Some(Caller::User("laptop".to_owned())));
        tokens.grant("laptop".to_owned(), digest("another"));
        assert_eq!([tokens.caller("secret").is_some(), tokens.caller("another").is_some()], [false, true]);
        tokens.revoke("laptop");
        assert_eq!((tokens.caller("another"), tokens.labels()), (None, Vec::new()));
    }
}
