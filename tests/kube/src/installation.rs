//! The operator, installed by its chart, and a trainer for it to run.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::{TestbedError, at, run};
use crate::image::Image;

/// Where jobs are.
pub const NAMESPACE: &str = "team";

impl Cluster {
    /// Installs the operator of these static programs and waits until it is ready.
    ///
    /// # Errors
    ///
    /// If a program is missing, or the chart cannot be installed.
    pub fn install_operator(&self, programs: &Path, settings: &str) -> Result<(), TestbedError> {
        for (image, program) in [("pollux", "pollux"), ("trainer", "pollux-trainer")] {
            let path = format!("bin/{image}");
            self.import(&Image::new(&format!("pollux.test/{image}:1")).program(&path, &programs.join(program)))?;
        }
        let image = "image.repository=pollux.test/pollux,image.pullPolicy=Never";
        let settings = format!("{image},{settings}");
        self.helm(&["install", "--create-namespace", "--set-string=image.tag=1", "--set", &settings])?;
        self.kubectl(&["create", "namespace", NAMESPACE])?;
        let saved = self.saved();
        fs::create_dir(&saved).map_err(at(&saved))
    }

    /// Runs helm with the chart of the operator.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn helm(&self, arguments: &[&str]) -> Result<(), TestbedError> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/pollux");
        let mut helm = self.command("helm");
        helm.args(arguments).arg("pollux").arg(chart).args(["--namespace=pollux", "--wait"]);
        run(&mut helm).map(drop)
    }

    /// Where trainings save, on this machine.
    #[must_use]
    pub fn saved(&self) -> std::path::PathBuf {
        self.folder().join("saved")
    }

    /// A job whose trainer has these options, and gives an account of its samples in `NAME.audit` where it saves.
    #[must_use]
    pub fn training(&self, name: &str, options: &[&str]) -> Value {
        let audit = format!("/pollux/checkpoints/{name}.audit");
        let command = [&["/bin/trainer", "--audit", &audit, "--checkpoint-every", "1"], options].concat();
        let container = json!({
            "name": "main", "image": "pollux.test/trainer:1", "imagePullPolicy": "Never",
            "command": command,
            "volumeMounts": [{"name": "saved", "mountPath": "/pollux/checkpoints"}],
        });
        let volume = json!({"name": "saved", "hostPath": {"path": self.saved()}});
        json!({
            "apiVersion": "pollux.dev/v1alpha1", "kind": "PolluxJob",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"template": {"spec": {"containers": [container], "volumes": [volume]}}},
        })
    }

    /// How many epochs of a training are over.
    ///
    /// # Errors
    ///
    /// If one of them did not use every sample exactly once.
    pub fn audited_epochs(&self, name: &str, samples: &str) -> Result<usize, TestbedError> {
        let text = fs::read_to_string(self.saved().join(format!("{name}.audit"))).unwrap_or_default();
        // The last line may be about to be written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines: Vec<Vec<&str>> = whole.lines().map(|line| line.split(' ').collect()).collect();
        for (number, line) in (1..).zip(&lines) {
            if line.len() != 3 || line[..2] != [number.to_string().as_str(), samples] || line[2] != lines[0][2] {
                return Err(TestbedError::Account(format!("{name}, epoch {number}: {}", line.join(" "))));
            }
        }
        Ok(lines.len())
    }
}
