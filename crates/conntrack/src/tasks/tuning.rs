//! Applies the profile's conntrack settings to the kernel.

use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crds::profile::forwarding::Conntrack;
use runtime::{CancellationToken, chain, run_blocking};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{ConntrackState, Limits, update};
use crate::limits::{self, Profile, TcpWindow};

/// The time until a failed setting is tried again. The files do not exist before the first rule
/// that uses conntrack does.
const RETRY: Duration = Duration::from_secs(10);

/// The last attempt to apply the settings.
struct Attempt {
    desired: Conntrack,
    /// When to try again; `None` if the settings are applied.
    retry: Option<Instant>,
}

/// Writes the `settings` of the configuration below `sysctls`, now and whenever they change, until
/// `stop` is cancelled. Reports settings that cannot be applied, and tries them again.
pub(super) async fn follow<C>(
    mut config: watch::Receiver<Option<C>>,
    settings: fn(&C) -> Conntrack,
    sysctls: PathBuf,
    state: watch::Sender<ConntrackState>,
    stop: CancellationToken,
) {
    let mut last: Option<Attempt> = None;
    loop {
        let desired = config.borrow_and_update().as_ref().map(settings);
        let now = Instant::now();
        if let Some(desired) = desired
            && last.as_ref().is_none_or(|last| last.is_due(&desired, now))
        {
            let (conntrack, root) = (desired.clone(), sysctls.clone());
            // On a change of the number of buckets, the kernel moves every entry before the write
            // returns.
            let limits = run_blocking(move || commit(&conntrack, &root)).await;
            last = Some(Attempt {
                desired,
                retry: (limits != Limits::Set).then(|| now + RETRY),
            });
            post(&state, limits);
        }
        let retry = last.as_ref().and_then(|last| last.retry);
        // Cancel safe: the desired values are read again whichever arm ends.
        tokio::select! {
            () = stop.cancelled() => return,
            changed = config.changed() => if changed.is_err() { return },
            () = sleep_until(retry.unwrap_or(now)), if retry.is_some() => {}
        }
    }
}

fn commit(desired: &Conntrack, sysctls: &Path) -> Limits {
    let settings = match limits::observe_machine() {
        Ok(machine) => limits::compile(&profile(desired), &machine),
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

fn post(state: &watch::Sender<ConntrackState>, limits: Limits) {
    update(state, |state| {
        if let Limits::NotSet(failed) = &limits
            && state.limits != limits
        {
            let failed = failed.join("; ");
            warn!(%failed, "unable to apply all connection tracking settings of the profile");
        }
        state.limits = limits;
    });
}

/// Converts the settings to the types of [`limits`].
fn profile(desired: &Conntrack) -> Profile {
    Profile {
        max_per_core: NonZeroU32::new(desired.max_per_core),
        min: desired.min,
        tcp_established: desired.tcp_established_timeout.duration(),
        tcp_close_wait: desired.tcp_close_wait_timeout.duration(),
        tcp_window: match desired.tcp_be_liberal {
            true => TcpWindow::Liberal,
            false => TcpWindow::Unchanged,
        },
        udp: desired.udp_timeout.duration(),
        udp_stream: desired.udp_stream_timeout.duration(),
    }
}

// === impl Attempt ===

impl Attempt {
    fn is_due(&self, desired: &Conntrack, now: Instant) -> bool {
        self.desired != *desired || self.retry.is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::mpsc;
    use std::thread;

    use crds::EffectiveConfig;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn effective(profile: &str) -> EffectiveConfig {
        EffectiveConfig::of(&serde_saphyr::from_str(profile).expect("a spec"))
    }

    /// The kernel takes seconds to move a large table to other buckets. Probes are answered
    /// meanwhile.
    #[tokio::test]
    async fn other_tasks_go_on_while_the_kernel_takes_its_time_over_a_setting() {
        let root = tempfile::tempdir().expect("a directory");
        let folder = root.path().join("net/netfilter");
        fs::create_dir_all(&folder).expect("a directory");
        // Opening it blocks until the other side opens it.
        let file = folder.join("nf_conntrack_udp_timeout");
        let made = Command::new("mkfifo").arg(&file).status();
        assert!(made.expect("coreutils has mkfifo").success());
        let (go_on, continued) = mpsc::channel();
        let kernel = thread::spawn(move || {
            let in_time = continued.recv_timeout(PATIENCE);
            fs::write(file, "17").expect("the file has a reader");
            in_time
        });

        let (_config, applied) = watch::channel(Some(effective(
            "{conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 17s}}",
        )));
        let posted = watch::Sender::new(ConntrackState::default());
        let stop = CancellationToken::new();
        let following = follow(
            applied,
            |config: &EffectiveConfig| config.conntrack.clone(),
            root.path().to_owned(),
            posted.clone(),
            stop,
        );
        let following = tokio::spawn(following);
        tokio::task::yield_now().await;
        go_on.send(()).expect("the kernel waits");
        let mut state = posted.subscribe();
        let set = state.wait_for(|state| state.limits != Limits::Awaited);
        let limits = set.await.expect("the sender is there").limits.clone();
        assert_eq!(limits, Limits::Set);
        let in_time = kernel.join().expect("a file can be written");
        in_time.expect("the setting was done before other tasks continued");
        following.abort();
    }
}
