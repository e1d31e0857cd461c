use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use pollux_policy::JobId;
use pollux_store::TokenRow;
use sha2::{Digest, Sha256};

/// SHA-256 of a token.
type TokenDigest = [u8; 32];

/// What tokens open, by their digests: the tokens themselves are not kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    jobs: Arc<RwLock<BTreeMap<TokenDigest, JobId>>>,
}

impl Tokens {
    pub(crate) fn recovered(rows: &[TokenRow]) -> Self {
        let jobs = rows.iter().filter_map(|row| Some((row.digest, row.job?))).collect();
        Self { jobs: Arc::new(RwLock::new(jobs)) }
    }

    /// A token that opens a job, and the row to be kept of it.
    pub(crate) fn issue(&self, job: JobId) -> Result<(String, TokenRow), getrandom::Error> {
        let mut random = [0_u8; 32];
        getrandom::fill(&mut random)?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let digest = digest(&token);
        self.jobs.write().expect("nobody panics with it").insert(digest, job);
        Ok((token, TokenRow { digest, job: Some(job), label: "workers".to_owned() }))
    }

    pub(crate) fn forget(&self, job: JobId) {
        self.jobs.write().expect("nobody panics with it").retain(|_, of| *of != job);
    }

    /// The job that a token opens. How long that takes tells something of digests, and nothing of tokens.
    pub(crate) fn job_of(&self, token: &str) -> Option<JobId> {
        self.jobs.read().expect("nobody panics with it").get(&digest(token)).copied()
    }
}

fn digest(token: &str) -> TokenDigest {
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
        assert_eq!(
            [&first, &second, "guess"].map(|token| tokens.job_of(token)),
            [Some(JobId(1)), Some(JobId(2)), None]
        );
        tokens.forget(JobId(2));
        assert_eq!(tokens.job_of(&second), None);
        assert_eq!(Tokens::recovered(&[row]).job_of(&first), Some(JobId(1)));
    }
}
