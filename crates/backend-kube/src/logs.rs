use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::KubeSettings;
use crate::backend::Threads;
use crate::log_text::LogText;
use crate::names::{INSTANCE_LABEL, REPLICA_LABEL, replica_label};
use crate::stage::{Stage, is_bundle, may_have_run, report, stage};
use futures_util::{AsyncRead, AsyncReadExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt};
use pollux_backend::{LogAnswer, LogChunk, LogReader, LogStart, ReplicaId};

/// How often a log is read of which the end has not come yet, and how soon again.
const LOOKS_MAX: u32 = 50;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Most that is read of a log. A kubelet keeps 10 MiB if nobody has told it otherwise.
const LOG_BYTES_MAX: usize = 64 << 20;
/// Bytes read at a time.
const PIECE: usize = 64 * 1024;

/// What a kubelet keeps of what a container wrote, be it text or not: the newest lines, if it is more than that.
pub(crate) async fn read_log(
    pods: &Api<Pod>,
    name: &str,
    params: &LogParams,
    bytes_max: usize,
) -> Result<Vec<u8>, kube::Error> {
    let log = pods.log_stream(name, params).await?;
    newest(std::pin::pin!(log), bytes_max).await.map_err(|error| kube::Error::Service(Box::new(error)))
}

/// The whole lines at the end.
async fn newest(mut log: impl AsyncRead + Unpin, bytes_max: usize) -> io::Result<Vec<u8>> {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; PIECE]);
    loop {
        let count = log.read(&mut piece).await?;
        bytes.extend_from_slice(&piece[..count]);
        // Not with every piece: what stays is moved.
        if bytes.len() > bytes_max && (count == 0 || bytes.len() > bytes_max.saturating_mul(2)) {
            let cut = bytes.len() - bytes_max;
            let line = bytes[cut - 1..].iter().position(|byte| *byte == b'\n');
            bytes.drain(..line.map_or(cut, |end| cut + end));
        }
        if count == 0 {
            return Ok(bytes);
        }
    }
}

/// Reads what the kubelets keep of what pods wrote.
#[derive(Clone)]
pub(crate) struct KubeLogs {
    client: Client,
    instance: String,
    threads: Arc<Threads>,
}

impl std::fmt::Debug for KubeLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeLogs").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl KubeLogs {
    pub(crate) fn new(client: Client, settings: &KubeSettings, threads: Arc<Threads>) -> Self {
        Self { client, instance: settings.instance.clone(), threads }
    }

    /// The pod of a replica, as the first there or beside that.
    async fn find(&self, replica: ReplicaId) -> Result<Option<Pod>, kube::Error> {
        let pods = Api::<Pod>::all(self.client.clone());
        for label in [format!("{REPLICA_LABEL}={}", replica.0), replica_label(replica)] {
            let labels = format!("{INSTANCE_LABEL}={},{label}", self.instance);
            let found = pods.list(&ListParams::default().labels(&labels)).await?;
            if let Some(pod) = found.items.into_iter().next() {
                return Ok(Some(pod));
            }
        }
        Ok(None)
    }

    async fn look(&self, replica: ReplicaId, from: LogStart, bytes_max: usize) -> Result<LogChunk, kube::Error> {
        let position = match from {
            LogStart::At(position) => position,
            LogStart::LastLines(_) => 0,
        };
        let nothing = LogChunk { next: position, ..LogChunk::default() };
        let Some(pod) = self.find(replica).await? else { return Ok(nothing) };
        let has_ended = stage(&pod) == Stage::Ended;
        if !may_have_run(&pod) {
            return Ok(LogChunk { ended: has_ended, ..nothing });
        }
        let main = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|main| main.name.clone());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let params = LogParams { container: main, ..LogParams::default() };
        let written = report(&pod).and_then(|report| report.of(replica)?.1);
        let mut looks = 0;
        loop {
            let kept = match read_log(&pods, &pod.name_any(), &params, LOG_BYTES_MAX).await {
                Ok(kept) => kept,
                // It was forgotten just now.
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(nothing),
                Err(error) => return Err(error),
            };
            // Where it is will be known with the next mark.
            let (text, ended_after) = match is_bundle(&pod) {
                true => LogText::read_of(&kept, replica, written),
                false => (LogText::read(&kept, written), None),
            };
            let Some(text) = text else { return Ok(nothing) };
            let has_ended = has_ended || ended_after.is_some();
            looks += 1;
            // What a program wrote last is on its way when its end is told already.
            if written.is_none_or(|written| text.end() >= written) || looks == LOOKS_MAX {
                return Ok(text.chunk(from, bytes_max, has_ended));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl LogReader for KubeLogs {
    fn read(&self, replica: ReplicaId, from: LogStart, bytes_max: usize, answer: LogAnswer) {
        let logs = self.clone();
        self.threads.runtime().spawn(async move {
            answer(logs.look(replica, from, bytes_max).await.map_err(io::Error::other));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn logs_are_read_whole_whatever_their_bytes_or_from_a_line_near_the_end() {
        let log = b"\xff\xfe\ncaf\xc3\n\xa9\nend";
        assert_eq!(newest(&log[..], 100).await.unwrap(), log);
        assert_eq!(newest(&log[..], log.len()).await.unwrap(), log);
        assert_eq!(newest(&log[..], 9).await.unwrap(), b"\xa9\nend");
        assert_eq!(newest(&log[..], 5).await.unwrap(), b"\xa9\nend", "a line that just fits is kept");
        assert_eq!(newest(&log[..], 2).await.unwrap(), b"nd", "a line alone that is longer is cut");
        let lines: Vec<u8> = (0..100_000).flat_map(|line| format!("{line}\n").into_bytes()).collect();
        assert_eq!(newest(&lines[..], 24).await.unwrap(), b"99996\n99997\n99998\n99999\n");
    }
}
