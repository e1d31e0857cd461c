//! One operator: it waits until it leads, rebuilds what was known, and schedules until it is told to end.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Config};
use pollux_backend_kube::{EpochGate, KubeBackend, KubeSettings};
use pollux_engine::EngineSettings;
use pollux_policy::PolicySettings;
use pollux_server::http::HttpSettings;
use pollux_server::{Daemon, ServerSettings, Stopper};
use pollux_store::Store;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tracing::{error, info};

use crate::OperatorError;
use crate::certificates::Certificates;
use crate::controller::{Controller, Templates};
use crate::journal::KubeJournal;
use crate::leader::Leadership;
use crate::token_review::TokenReviews;

/// For those who would change jobs or nodes over the REST interface.
const CHANGED_ELSEWHERE: &str = "a job is a PolluxJob resource, which `kubectl pollux submit`, `pause`, `resume` and `cancel` \
     change for you, and `kubectl drain` empties a node";

/// How an operator is run.
#[derive(Clone, Debug)]
pub struct OperatorSettings {
    /// How the cluster is used.
    pub kube: KubeSettings,
    /// A folder that need not survive.
    pub state_dir: PathBuf,
    /// Where the REST interface listens.
    pub listen: SocketAddr,
    /// The name under which workers and users reach it, of a Service.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// Who this replica of the operator is, among others.
    pub identity: String,
    /// Who gets what.
    pub policy: PolicySettings,
    /// Seconds between plans.
    pub round_interval_s: f64,
    /// How long a replica may take to save and leave.
    pub grace: Duration,
}

/// An operator that leads.
pub struct Operator {
    daemon: Daemon,
    leadership: Leadership,
    controller: JoinHandle<()>,
    holding: JoinHandle<()>,
    runtime: Runtime,
}

impl Operator {
    /// Waits until this replica leads, and starts.
    pub fn start(settings: &OperatorSettings) -> Result<Self, OperatorError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("operator")
            .enable_all()
            .build()
            .map_err(OperatorError::Thread)?;
        let refused = |reason| OperatorError::File { file: settings.state_dir.display().to_string(), reason };
        fs::create_dir_all(&settings.state_dir).map_err(refused)?;
        let (config, client) = runtime.block_on(async {
            let config = Config::infer().await?;
            Ok::<_, OperatorError>((config.clone(), Client::try_from(config)?))
        })?;
        let KubeSettings { namespace, instance, .. } = &settings.kube;
        let leadership = Leadership::new(client.clone(), namespace, instance, &settings.identity);
        let journal = Arc::new(KubeJournal::new(client.clone(), namespace, instance, runtime.handle().clone()));
        let certificates = runtime.block_on(async {
            leadership.acquire().await;
            let epoch = EpochGate::new(client.clone(), &settings.kube).highest().await?;
            let kept = journal.read().await?;
            let batches = kept.since.len();
            Store::rebuild(&settings.state_dir, kept.database.as_deref(), &kept.since, epoch.0)?;
            info!(batches, epoch = epoch.0, "what was known is read");
            let names = [settings.host.clone()];
            Certificates::prepare(client.clone(), namespace, instance, &names, &settings.state_dir).await
        })?;
        let templates = Arc::new(Templates::default());
        let kube = KubeSettings { authority: Some(certificates.authority), ..settings.kube.clone() };
        let checkpoint_dir = kube.checkpoint_dir.to_string_lossy().into_owned();
        let audience = format!("https://{}", settings.host);
        let reviews = TokenReviews::new(client.clone(), &audience, namespace, runtime.handle().clone());
        let http = HttpSettings {
            tls: Some(certificates.files),
            hosts: vec![settings.host.clone()],
            authenticator: Some(Arc::new(reviews)),
            changed_elsewhere: Some(CHANGED_ELSEWHERE),
            ..HttpSettings::new(settings.listen)
        };
        let server = ServerSettings { journal_copy: Some(journal), ..server_settings(settings) };
        let pods = Arc::clone(&templates);
        let daemon = Daemon::start(server, &http, |observer| {
            KubeBackend::new(config, kube, pods, observer).map(|backend| Box::new(backend) as Box<_>)
        })?;
        let controller = Controller::new(client, daemon.handle().clone(), templates, checkpoint_dir);
        let stopper = daemon.stopper();
        let controller = runtime.spawn(async move {
            if let Err(error) = controller.run().await {
                error!(%error, "jobs cannot be followed any more");
            }
            stopper.stop();
        });
        runtime.block_on(leadership.announce())?;
        let stopper = daemon.stopper();
        let held = leadership.clone();
        let holding = runtime.spawn(async move {
            let why = held.hold().await;
            error!(why, "this replica leads no longer, and ends");
            stopper.stop();
        });
        Ok(Self { daemon, leadership, controller, holding, runtime })
    }

    /// Where it is reached.
    pub fn url(&self) -> &str {
        self.daemon.url()
    }

    /// How to end it.
    pub fn stopper(&self) -> Stopper {
        self.daemon.stopper()
    }

    /// Schedules until it is told to end, or cannot go on. Pods run on.
    pub fn wait(self) -> Result<(), OperatorError> {
        let outcome = self.daemon.wait();
        self.controller.abort();
        let still_leads = !self.holding.is_finished();
        self.holding.abort();
        if still_leads {
            self.runtime.block_on(self.leadership.release());
        }
        outcome?;
        if still_leads { Ok(()) } else { Err(OperatorError::NotLeader("its lease is over".to_owned())) }
    }
}

/// Pods take longer to start than processes.
fn server_settings(settings: &OperatorSettings) -> ServerSettings {
    let engine = EngineSettings {
        round_interval_s: settings.round_interval_s,
        round_gap_min_s: settings.round_interval_s.min(3.0),
        replans_on_events: true,
        restart_cost_default_s: 30.0,
        settle_timeout_s: 600.0,
        ..EngineSettings::default()
    };
    ServerSettings {
        engine,
        grace: settings.grace,
        worker_url: Some(format!("https://{}:{}", settings.host, settings.port)),
        worker_authority: Some(KubeSettings::AUTHORITY.into()),
        ..ServerSettings::new(&settings.state_dir, "", settings.policy.clone())
    }
}
