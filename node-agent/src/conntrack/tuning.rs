//! Sets the kernel's table of connections as the profile says.

use std::io;
use std::num::NonZeroU32;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::conntrack::limits::{self, Profile, TcpWindow};
use crds::profile::forwarding::Conntrack;
use runtime::{CancellationToken, chain};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::board::Board;
use crate::conntrack::Limits;

/// How long until what could not be set is tried again. The files are not there before the first
/// rule that looks at connections is.
const RETRY: Duration = Duration::from_secs(10);

/// What was last set, or could not be.
struct Attempt {
    wanted: Conntrack,
    /// When to try again; `None`: it is set.
    retry: Option<Instant>,
}

/// Sets what the profile says, below `sysctls`, now and whenever it says another thing, until told
/// to stop. What cannot be set is said, and tried again.
pub(super) async fn follow(board: Arc<Board>, sysctls: PathBuf, stop: CancellationToken) {
    let mut in_force = board.in_force();
    let mut last: Option<Attempt> = None;
    loop {
        let wanted = in_force
            .borrow_and_update()
            .as_ref()
            .map(|in_force| in_force.effective.conntrack.clone());
        let now = Instant::now();
        if let Some(wanted) = wanted
            && last.as_ref().is_none_or(|last| last.is_due(&wanted, now))
        {
            let (conntrack, root) = (wanted.clone(), sysctls.clone());
            // Another number of buckets has the kernel move every entry before the write returns.
            let limits = match spawn_blocking(move || commit(&conntrack, &root)).await {
                Ok(limits) => limits,
                Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
                // The runtime is shutting down.
                Err(_) => return,
            };
            last = Some(Attempt {
                wanted,
                retry: (limits != Limits::Set).then(|| now + RETRY),
            });
            tell(&board, limits);
        }
        let retry = last.as_ref().and_then(|last| last.retry);
        // Cancel safe: what is wanted is looked at anew whichever arm ends.
        tokio::select! {
            () = stop.cancelled() => return,
            changed = in_force.changed() => if changed.is_err() { return },
            () = sleep_until(retry.unwrap_or(now)), if retry.is_some() => {}
        }
    }
}

fn commit(wanted: &Conntrack, sysctls: &Path) -> Limits {
    let settings = match limits::observe_machine() {
        Ok(machine) => limits::compile(&profile(wanted), &machine),
        Err(error) => return Limits::NotSet(vec![unmeasured(&error)]),
    };
    let committed = limits::commit(&settings, sysctls);
    for written in &committed.written {
        info!("set {written}");
    }
    let failed = committed.failed.iter();
    let failed: Vec<String> = failed.map(|error| chain(error).to_string()).collect();
    match failed.is_empty() {
        true => Limits::Set,
        false => Limits::NotSet(failed),
    }
}

fn unmeasured(error: &io::Error) -> String {
    format!("failed to count this machine's CPUs and memory: {error}")
}

fn tell(board: &Board, limits: Limits) {
    board.update_conntrack(|standing| {
        if let Limits::NotSet(failed) = &limits
            && standing.limits != limits
        {
            let failed = failed.join("; ");
            warn!(%failed, "the table of connections is not as the profile says");
        }
        standing.limits = limits;
    });
}

/// The same in the words of the crate that knows the kernel.
fn profile(wanted: &Conntrack) -> Profile {
    Profile {
        max_per_core: NonZeroU32::new(wanted.max_per_core),
        min: wanted.min,
        tcp_established: wanted.tcp_established_timeout.duration(),
        tcp_close_wait: wanted.tcp_close_wait_timeout.duration(),
        tcp_window: match wanted.tcp_be_liberal {
            true => TcpWindow::Liberal,
            false => TcpWindow::AsItIs,
        },
        udp: wanted.udp_timeout.duration(),
        udp_stream: wanted.udp_stream_timeout.duration(),
    }
}

// === impl Attempt ===

impl Attempt {
    fn is_due(&self, wanted: &Conntrack, now: Instant) -> bool {
        self.wanted != *wanted || self.retry.is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::mpsc;
    use std::thread;

    use crds::{EffectiveConfig, NodeProxySpec};

    use super::*;
    use crate::engine::{Engine, Silence, View};
    use source::{Assignment, Delivery};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn view(profile: &str) -> View {
        let profile = serde_saphyr::from_str(profile).expect("a spec");
        let assignment = Assignment {
            generation: Some(1),
            spec: NodeProxySpec {
                config: EffectiveConfig::of(&profile),
                ..NodeProxySpec::default()
            },
            reason: String::new(),
        };
        let mut engine = Engine::new("node-1", None, Silence::MayEnd);
        let delivery = Delivery::Configuration(Some(assignment));
        engine.apply(delivery, std::time::Instant::now());
        engine.view()
    }

    /// A large table takes the kernel seconds to move to other buckets; probes are answered
    /// meanwhile.
    #[tokio::test]
    async fn other_tasks_go_on_while_the_kernel_takes_its_time_over_a_setting() {
        let root = tempfile::tempdir().expect("a directory");
        let folder = root.path().join("net/netfilter");
        fs::create_dir_all(&folder).expect("a directory");
        // Whoever opens it waits for the other side.
        let file = folder.join("nf_conntrack_udp_timeout");
        let made = Command::new("mkfifo").arg(&file).status();
        assert!(made.expect("coreutils has mkfifo").success());
        let (went_on, others) = mpsc::channel();
        let kernel = thread::spawn(move || {
            let in_time = others.recv_timeout(PATIENCE);
            fs::write(file, "17").expect("somebody reads it");
            in_time
        });

        let board = Arc::new(Board::new());
        let profile = "{conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 17s}}";
        board.post_view(view(profile));
        let stop = CancellationToken::new();
        let following = follow(Arc::clone(&board), root.path().to_owned(), stop);
        let following = tokio::spawn(following);
        tokio::task::yield_now().await;
        went_on.send(()).expect("the kernel waits");
        let mut standing = board.conntrack();
        let set = standing.wait_for(|standing| standing.limits != Limits::Awaited);
        let limits = set.await.expect("the board is there").limits.clone();
        assert_eq!(limits, Limits::Set);
        let in_time = kernel.join().expect("a file can be written");
        in_time.expect("others did not go on before the setting was done");
        following.abort();
    }
}
