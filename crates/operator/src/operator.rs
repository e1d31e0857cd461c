//! One operator: it waits until it leads, rebuilds what was known, and schedules until it is told to end.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::{Client, Config};
use pollux_backend_kube::{EpochGate, KubeBackend, KubeSettings};
use pollux_engine::EngineSettings;
use pollux_policy::PolicySettings;
use pollux_server::http::HttpSettings;
use pollux_server::{Daemon, ServerSettings};
use pollux_store::Store;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info};

use crate::OperatorError;
use crate::certificates::Certificates;
use crate::controller::{Controller, Templates};
use crate::cordons;
use crate::group_secret;
use crate::journal::KubeJournal;
use crate::leader::Leadership;
use crate::salvage::{are_numbered, salvage};
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
    /// How long the authority that vouches for it signs before another does.
    pub renew_authority_after: Duration,
}

/// Ends an operator, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// Lets [`Operator::run`] return.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    async fn stopped(&self) {
        // Our own sender is there for as long as this.
        let _ = self.0.subscribe().wait_for(|is_stopped| *is_stopped).await;
    }
}

/// One of several replicas.
#[derive(Debug)]
pub struct Operator<'a> {
    settings: &'a OperatorSettings,
    runtime: Runtime,
    config: Config,
}

/// What is ready before a leader acts.
struct Prepared {
    journal: Arc<KubeJournal>,
    certificates: Certificates,
}

impl<'a> Operator<'a> {
    /// Waits until this replica leads, then schedules until it is told to end or cannot go on. Pods run on.
    pub fn run(settings: &'a OperatorSettings, stop: &Stop) -> Result<(), OperatorError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("operator")
            .enable_all()
            .build()
            .map_err(OperatorError::Thread)?;
        let refused = |reason| OperatorError::File { file: settings.state_dir.display().to_string(), reason };
        fs::create_dir_all(&settings.state_dir).map_err(refused)?;
        let config = runtime.block_on(Config::infer())?;
        let operator = Self { settings, runtime, config };
        let KubeSettings { namespace, instance, .. } = &settings.kube;
        let leadership = {
            let _entered = operator.runtime.enter();
            Leadership::new(Client::try_from(operator.config.clone())?, namespace, instance, &settings.identity)
        };
        let is_leader = operator.runtime.block_on(async {
            tokio::select! {
                () = leadership.acquire() => true,
                () = stop.stopped() => false,
            }
        });
        if !is_leader {
            return Ok(());
        }
        let held = leadership.clone();
        let holding = operator.runtime.spawn(async move { held.hold().await });
        let (renewals, outcome) = (holding.abort_handle(), operator.lead(&leadership, holding, stop));
        renewals.abort();
        if leadership.term().is_over() {
            outcome?;
            return Err(OperatorError::NotLeader("its lease is over".to_owned()));
        }
        operator.runtime.block_on(leadership.release());
        outcome
    }

    /// Rebuilds what was known and schedules, as long as this replica leads.
    fn lead(&self, leadership: &Leadership, holding: JoinHandle<String>, stop: &Stop) -> Result<(), OperatorError> {
        let settings = self.settings;
        let (config, term) = (self.config.clone(), leadership.term().clone());
        // Nothing is written unless this replica leads, by whomever.
        let connect = move || Ok(ClientBuilder::try_from(config.clone())?.with_layer(&term).build());
        let client = {
            let _entered = self.runtime.enter();
            connect()?
        };
        let prepared = self.runtime.block_on(async {
            tokio::select! {
                prepared = self.prepare(client.clone()) => prepared.map(Some),
                () = stop.stopped() => Ok(None),
            }
        });
        let Some(Prepared { journal, certificates }) = prepared? else { return Ok(()) };
        let templates = Arc::new(Templates::default());
        let audience = format!("https://{}", settings.host);
        let kube = KubeSettings {
            authorities: Some(certificates.trusted.clone()),
            audience: Some(audience.clone()),
            ..settings.kube.clone()
        };
        let namespace = &settings.kube.namespace;
        let reviews = TokenReviews::new(client.clone(), &audience, namespace, self.runtime.handle().clone());
        let http = HttpSettings {
            tls: Some(certificates.files.clone()),
            hosts: vec![settings.host.clone()],
            authenticator: Some(Arc::new(reviews)),
            changed_elsewhere: Some(CHANGED_ELSEWHERE),
            ..HttpSettings::new(settings.listen)
        };
        let server = ServerSettings { journal_copy: Some(journal), ..server_settings(settings) };
        let (pods, followed) = (Arc::clone(&templates), kube.clone());
        let daemon = Daemon::start(server, &http, |observer| {
            KubeBackend::new(connect, kube, pods, observer).map(|backend| Box::new(backend) as Box<_>)
        })?;
        let gpu_resource = settings.kube.gpu_resource.clone();
        let cordons = cordons::follow(client.clone(), daemon.handle().clone(), Arc::clone(&templates), gpu_resource);
        let controller = Controller::new(client, daemon.handle().clone(), templates, followed);
        let (stopper, stop) = (daemon.stopper(), stop.clone());
        let announced = leadership.clone();
        let watching = self.runtime.spawn(async move {
            tokio::select! {
                // Only now there is somebody who answers.
                Err(error) = announced.announce() => error!(%error, "workers cannot be led to this replica"),
                outcome = controller.run() => if let Err(error) = outcome {
                    error!(%error, "jobs cannot be followed any more");
                },
                outcome = cordons => if let Err(error) = outcome {
                    error!(%error, "nodes cannot be followed any more");
                },
                () = certificates.renew() => {}
                why = holding => error!(why = why.unwrap_or_default(), "this replica is no longer the leader and ends"),
                () = stop.stopped() => {}
            }
            stopper.stop();
        });
        info!(url = daemon.url(), "listening");
        let outcome = daemon.wait();
        watching.abort();
        Ok(outcome?)
    }

    /// Makes the state folder from what is kept; why that cannot be used, if it is damaged.
    async fn read(&self, client: &Client, journal: &KubeJournal, epoch: u64) -> Result<Option<String>, OperatorError> {
        let kept = match journal.take_over().await {
            Ok(kept) => kept,
            Err(error) if is_damaged(&error) => {
                journal.take_over_damaged().await?;
                return Ok(Some(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let batches = kept.since.len();
        if kept.database.is_none() && batches == 0 && are_numbered(client.clone()).await? {
            return Ok(Some("there is none, but jobs have numbers".to_owned()));
        }
        match Store::rebuild(&self.settings.state_dir, kept.database.as_deref(), &kept.since, epoch) {
            Ok(()) => info!(batches, epoch, "what was known is read"),
            Err(error) if error.is_damage() => return Ok(Some(error.to_string())),
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }

    async fn prepare(&self, client: Client) -> Result<Prepared, OperatorError> {
        let settings = self.settings;
        let KubeSettings { namespace, instance, .. } = &settings.kube;
        let journal = Arc::new(KubeJournal::new(client.clone(), namespace, instance, self.runtime.handle().clone()));
        let epoch = EpochGate::new(client.clone(), &settings.kube).highest().await?;
        if let Some(reason) = self.read(&client, &journal, epoch.0).await? {
            salvage(client.clone(), settings, &journal, epoch.0, &reason).await?;
        }
        group_secret::prepare(client.clone(), namespace, instance, &settings.state_dir).await?;
        let (host, folder, renew_after) = (&settings.host, &settings.state_dir, settings.renew_authority_after);
        let certificates = Certificates::prepare(client, namespace, instance, host, folder, renew_after).await?;
        Ok(Prepared { journal, certificates })
    }
}

fn is_damaged(error: &OperatorError) -> bool {
    match error {
        OperatorError::Journal(_) => true,
        OperatorError::Store(error) => error.is_damage(),
        _ => false,
    }
}

/// Pods take longer to start than processes.
pub(crate) fn engine_settings(settings: &OperatorSettings) -> EngineSettings {
    EngineSettings {
        round_interval_s: settings.round_interval_s,
        round_gap_min_s: settings.round_interval_s.min(3.0),
        replans_on_events: true,
        restart_cost_default_s: 30.0,
        settle_timeout_s: 600.0,
        // Nodes that would take its pods may be added later.
        machine_failures_max: 1_000,
        ..EngineSettings::default()
    }
}

fn server_settings(settings: &OperatorSettings) -> ServerSettings {
    ServerSettings {
        engine: engine_settings(settings),
        grace: settings.grace,
        worker_url: Some(format!("https://{}:{}", settings.host, settings.port)),
        worker_authority: Some(KubeSettings::AUTHORITY.into()),
        worker_token_file: Some(KubeSettings::TOKEN.into()),
        ..ServerSettings::new(&settings.state_dir, "", settings.policy.clone())
    }
}
