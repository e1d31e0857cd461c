use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pollux_api::Role;
use pollux_backend_remote::NodeCaller;
use pollux_policy::{JobId, Timestamp};
use pollux_store::{TokenHolder, TokenRow, UserToken};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256 of a token.
pub(crate) type TokenDigest = [u8; 32];

/// The label of the token in the state folder.
pub(crate) const LOCAL_TOKEN: &str = "local";
/// A token that is used again within this is not said to be.
const USE_MS: u64 = 60_000;

/// Somebody who may use the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// By which the user is known, and owns jobs.
    pub name: String,
    /// What the user may do.
    pub role: Role,
}

impl User {
    /// A user.
    pub fn new(name: &str, role: Role) -> Self {
        Self { name: name.to_owned(), role }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.name)
    }
}

/// Whom a token belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A user, who may do what the role says.
    User(User),
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
            Self::User(user) => write!(f, "{user}"),
            Self::Viewer(owner) => write!(f, "viewer of {owner}"),
            Self::Monitor(name) => write!(f, "monitor {name}"),
            Self::Job(job) => write!(f, "workers of {job}"),
            Self::Machine(machine) => write!(f, "{machine}"),
        }
    }
}

/// A user's token that comes.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) user: User,
    pub(crate) digest: TokenDigest,
    pub(crate) created: Timestamp,
    pub(crate) expires: Option<Timestamp>,
}

impl Grant {
    /// What is to be kept of it.
    pub(crate) fn row(&self) -> TokenRow {
        let Self { user: User { name, role }, digest, created, expires } = self;
        let (name, role, created) = (name.clone(), stored(*role), Some(*created));
        TokenRow {
            digest: *digest,
            holder: TokenHolder::User(UserToken { name, role, created, expires: *expires, used: None }),
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
    users: BTreeMap<String, OfUser>,
}

#[derive(Debug)]
struct OfUser {
    digest: TokenDigest,
    role: Role,
    created: Option<Timestamp>,
    expires: Option<Timestamp>,
    /// In milliseconds, 0 for never.
    used_ms: AtomicU64,
}

impl OfUser {
    fn has_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Whether it has not been used for a while.
    fn is_used_anew(&self, now: Timestamp) -> bool {
        let used = self.used_ms.load(Ordering::Relaxed);
        let is_new = now.0 >= used.saturating_add(USE_MS);
        // Of several at once, one tells it.
        is_new && self.used_ms.compare_exchange(used, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Whom a token belongs to, and whether it is worth a note that it was used.
pub(crate) struct Recognised {
    pub(crate) caller: Caller,
    pub(crate) used: Option<TokenDigest>,
}

impl Tokens {
    pub(crate) fn recovered(rows: &[TokenRow]) -> Self {
        let mut known = Known::default();
        for TokenRow { digest, holder } in rows {
            match holder {
                TokenHolder::Job(job) => drop(known.jobs.insert(*digest, *job)),
                TokenHolder::User(user) => {
                    let of_user = OfUser {
                        digest: *digest,
                        role: role(user.role),
                        created: user.created,
                        expires: user.expires,
                        used_ms: AtomicU64::new(user.used.map_or(0, |used| used.0)),
                    };
                    known.users.insert(user.name.clone(), of_user);
                }
            }
        }
        Self { known: Arc::new(RwLock::new(known)) }
    }

    /// A token that opens a job, and the row to be kept of it.
    pub(crate) fn issue(&self, job: JobId) -> Result<(String, TokenRow), getrandom::Error> {
        let token = random()?;
        let digest = digest(&token);
        self.write().jobs.insert(digest, job);
        Ok((token, TokenRow { digest, holder: TokenHolder::Job(job) }))
    }

    pub(crate) fn forget(&self, job: JobId) {
        self.write().jobs.retain(|_, of| *of != job);
    }

    /// A user's token is good from now on, in place of another of that user.
    pub(crate) fn grant(&self, grant: Grant) {
        let Grant { user: User { name, role }, digest, created, expires } = grant;
        let of_user = OfUser { digest, role, created: Some(created), expires, used_ms: AtomicU64::new(0) };
        self.write().users.insert(name, of_user);
    }

    pub(crate) fn revoke(&self, label: &str) {
        self.write().users.remove(label);
    }

    /// The digest of a user's token.
    pub(crate) fn of_user(&self, label: &str) -> Option<TokenDigest> {
        self.read().users.get(label).map(|of_user| of_user.digest)
    }

    /// Whether a user has a token that opens something.
    pub(crate) fn is_in_use(&self, label: &str, now: Timestamp) -> bool {
        self.read().users.get(label).is_some_and(|of_user| !of_user.has_expired(now))
    }

    /// Tokens of users.
    pub(crate) fn list(&self) -> Vec<pollux_api::Token> {
        let known = self.read();
        let token = |(label, of_user): (&String, &OfUser)| pollux_api::Token {
            label: label.clone(),
            role: of_user.role,
            created_ms: of_user.created.map(|at| at.0),
            expires_ms: of_user.expires.map(|at| at.0),
            last_used_ms: Some(of_user.used_ms.load(Ordering::Relaxed)).filter(|used| *used > 0),
        };
        known.users.iter().map(token).collect()
    }

    /// Whom a token belongs to. That of a job is found in a tree of digests: how long that takes tells something of
    /// digests, and nothing of tokens.
    pub(crate) fn recognise(&self, token: &str, now: Timestamp) -> Option<Recognised> {
        let digest = digest(token);
        let known = self.read();
        let mut user = None;
        for (label, of_user) in &known.users {
            if bool::from(of_user.digest.ct_eq(&digest)) {
                user = Some((label, of_user));
            }
        }
        if let Some((label, of_user)) = user.filter(|(_, of_user)| !of_user.has_expired(now)) {
            let caller = Caller::User(User::new(label, of_user.role));
            return Some(Recognised { caller, used: of_user.is_used_anew(now).then_some(digest) });
        }
        let job = known.jobs.get(&digest)?;
        Some(Recognised { caller: Caller::Job(*job), used: None })
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().expect("nobody panics with it")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().expect("nobody panics with it")
    }
}

const fn role(stored: pollux_store::Role) -> Role {
    match stored {
        pollux_store::Role::Admin => Role::Admin,
        pollux_store::Role::Member => Role::Member,
        pollux_store::Role::Viewer => Role::Viewer,
    }
}

const fn stored(role: Role) -> pollux_store::Role {
    match role {
        Role::Admin => pollux_store::Role::Admin,
        Role::Member => pollux_store::Role::Member,
        Role::Viewer => pollux_store::Role::Viewer,
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

    fn grant(name: &str, token: &str, expires: Option<u64>) -> Grant {
        let (user, expires) = (User::new(name, Role::Member), expires.map(Timestamp));
        Grant { user, digest: digest(token), created: Timestamp(1), expires }
    }

    fn caller(tokens: &Tokens, token: &str, now: u64) -> Option<Caller> {
        tokens.recognise(token, Timestamp(now)).map(|found| found.caller)
    }

    #[test]
    fn a_token_opens_its_job_until_that_is_over_and_after_a_restart() {
        let tokens = Tokens::default();
        let (first, row) = tokens.issue(JobId(1)).unwrap();
        let (second, _) = tokens.issue(JobId(2)).unwrap();
        assert_eq!((first.len(), first == second), (64, false));
        let of = |job| Some(Caller::Job(JobId(job)));
        assert_eq!([&first, &second, "guess"].map(|token| caller(&tokens, token, 1)), [of(1), of(2), None]);
        tokens.forget(JobId(2));
        assert_eq!(caller(&tokens, &second, 1), None);
        assert_eq!(caller(&Tokens::recovered(&[row]), &first, 1), of(1));
    }

    #[test]
    fn a_users_token_is_good_until_it_is_replaced_or_taken_back() {
        let tokens = Tokens::default();
        tokens.grant(grant("ada", "secret", None));
        assert_eq!(caller(&tokens, "secret", 1), Some(Caller::User(User::new("ada", Role::Member))));
        tokens.grant(grant("ada", "another", None));
        assert_eq!([caller(&tokens, "secret", 1).is_some(), caller(&tokens, "another", 1).is_some()], [false, true]);
        tokens.revoke("ada");
        assert_eq!((caller(&tokens, "another", 1), tokens.list()), (None, Vec::new()));
    }

    #[test]
    fn a_token_ends_when_it_was_said_to_also_after_a_restart() {
        let coming = grant("ada", "secret", Some(5_000));
        let row = coming.row();
        let tokens = Tokens::default();
        tokens.grant(coming);
        for tokens in [tokens, Tokens::recovered(&[row])] {
            assert_eq!([4_999, 5_000].map(|now| caller(&tokens, "secret", now).is_some()), [true, false]);
            assert_eq!([4_999, 5_000].map(|now| tokens.is_in_use("ada", Timestamp(now))), [true, false]);
            let listed = tokens.list();
            assert_eq!((listed.len(), listed[0].created_ms, listed[0].expires_ms), (1, Some(1), Some(5_000)));
        }
    }

    #[test]
    fn the_last_use_of_a_token_is_known_to_the_minute() {
        let tokens = Tokens::default();
        tokens.grant(grant("ada", "secret", None));
        assert_eq!(tokens.list()[0].last_used_ms, None);
        let noted = |now| tokens.recognise("secret", Timestamp(now)).unwrap().used.is_some();
        assert_eq!([100_000, 100_001, 159_999, 160_000, 160_001].map(noted), [true, false, false, true, false]);
        assert_eq!(tokens.list()[0].last_used_ms, Some(160_000));
    }
}
