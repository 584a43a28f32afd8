//! The profile's settings for the agent process: listen addresses, logging and the OOM score
//! adjustment.

use std::fs;
use std::io;
use std::net::SocketAddr;

use crds::EffectiveConfig;
use crds::profile::process::LogFormat as ProfileFormat;
use handover::ServingState;
use runtime::{
    BindPolicy, CancellationToken, ListenConfig, Log, LogFormat, LogOptions, ModuleVerbosity, chain,
};
use thiserror::Error;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::engine::AppliedConfig;
use crate::latest::changed;

/// The file that the kernel reads the adjustment from (proc_pid_oom_score_adj(5)).
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// The addresses on which the two servers that follow the profile listen.
#[derive(Debug, Clone)]
pub(crate) struct ServerAddresses {
    pub(crate) health: watch::Sender<ListenConfig>,
    pub(crate) metrics: watch::Sender<ListenConfig>,
    /// The addresses from the command line, used before any profile is known and for fields that
    /// the profile does not set.
    initial: Addresses,
}

/// One address for each server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) health: SocketAddr,
    pub(crate) metrics: SocketAddr,
}

/// The kernel refused the OOM score adjustment.
#[derive(Debug, Error)]
#[error("failed to set oomScoreAdj to {adjustment}")]
struct AdjustError {
    adjustment: i32,
    source: io::Error,
}

// === impl ServerAddresses ===

impl ServerAddresses {
    /// Starts with the addresses of the command line, or with none if another proxy serves this
    /// node.
    pub(crate) fn new(initial: Addresses, serving_state: ServingState) -> ServerAddresses {
        let at = |address| {
            watch::Sender::new(ListenConfig {
                address: (serving_state == ServingState::Serving).then_some(address),
                policy: BindPolicy::Retry,
            })
        };
        ServerAddresses {
            health: at(initial.health),
            metrics: at(initial.metrics),
            initial,
        }
    }

    /// Applies the addresses of the profile, or none if another proxy serves this node.
    fn follow(&self, applied_config: &AppliedConfig, serving_state: ServingState) {
        let (mut health, mut metrics) = listen_configs(applied_config, self.initial);
        if serving_state != ServingState::Serving {
            (health.address, metrics.address) = (None, None);
        }
        for (sender, place) in [(&self.health, health), (&self.metrics, metrics)] {
            sender.send_if_modified(|known| {
                let changed = *known != place;
                *known = place;
                changed
            });
        }
    }
}

/// Applies the process settings of the profile in force, until `stop` is cancelled.
pub(crate) async fn follow(
    mut applied_config: watch::Receiver<Option<AppliedConfig>>,
    mut serving_state: watch::Receiver<ServingState>,
    server_addresses: ServerAddresses,
    log: Log,
    stop: CancellationToken,
) {
    let initial_log = log.options();
    let mut adjusted = None;
    loop {
        // All arms are cancel safe.
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed(&mut applied_config) => {}
            () = changed(&mut serving_state) => {}
        }
        let serving_state = *serving_state.borrow_and_update();
        let Some(applied_config) = applied_config.borrow_and_update().clone() else {
            continue;
        };
        server_addresses.follow(&applied_config, serving_state);
        let options = log_options(&applied_config, &initial_log);
        let LogOptions {
            filter,
            format,
            modules,
        } = options.clone();
        let vmodule: Vec<String> = modules.iter().map(ToString::to_string).collect();
        let vmodule = vmodule.join(",");
        match log.set(options) {
            Ok(true) => info!(filter, vmodule, ?format, "changed the log level and format"),
            Ok(false) => {}
            Err(error) => warn!(error = %chain(&error), "the log level and format are unchanged"),
        }
        let adjustment = applied_config.effective.oom_score_adj;
        if adjusted != Some(adjustment) {
            adjusted = Some(adjustment);
            // A higher OOM score than desired is no reason to stop serving; log it once.
            match commit_oom_score(adjustment) {
                Ok(()) => info!(adjustment, "changed oomScoreAdj"),
                Err(error) if is_written(&applied_config, "oomScoreAdj") => {
                    warn!(error = %chain(&error), "oomScoreAdj is unchanged");
                }
                // No user set it, and the kubelet gives a critical Pod -997, which is as good.
                Err(error) => debug!(error = %chain(&error), "oomScoreAdj is unchanged"),
            }
        }
    }
}

fn commit_oom_score(adjustment: i32) -> Result<(), AdjustError> {
    fs::write(OOM_SCORE_ADJ, adjustment.to_string())
        .map_err(|source| AdjustError { adjustment, source })
}

/// Returns whether the profile sets this field.
fn is_written(applied_config: &AppliedConfig, field: &str) -> bool {
    let assignment = applied_config.configuration.assignment();
    let fields = assignment.map(|assignment| &assignment.spec.written_fields);
    fields.is_some_and(|fields| fields.iter().any(|written| written == field))
}

/// Returns the logging options. The command line decides fields that the profile does not set.
fn log_options(applied_config: &AppliedConfig, initial: &LogOptions) -> LogOptions {
    let logging = &applied_config.effective.logging;
    let mut options = initial.clone();
    if is_written(applied_config, "logging.verbosity") {
        options.filter = LogOptions::filter_of(logging.verbosity).to_owned();
    }
    if is_written(applied_config, "logging.format") {
        options.format = match logging.format {
            ProfileFormat::Text => LogFormat::Text,
            ProfileFormat::Json => LogFormat::Json,
        };
    }
    let vmodule = logging.vmodule.iter();
    options.modules = vmodule
        .map(|module| ModuleVerbosity {
            pattern: module.file_pattern.clone(),
            verbosity: module.verbosity,
        })
        .collect();
    options
}

/// Returns the listen addresses for load balancers and for scrapers. The command line decides an
/// address that the profile does not set: the API's default is the command line's default, too, and
/// a user who started an agent on another address had a reason.
fn listen_configs(
    applied_config: &AppliedConfig,
    initial: Addresses,
) -> (ListenConfig, ListenConfig) {
    let EffectiveConfig {
        healthz_bind_address,
        metrics_bind_address,
        bind_address_hard_fail,
        ..
    } = &*applied_config.effective;
    let place = |field: &str, text: &str, initial: SocketAddr| ListenConfig {
        address: match (is_written(applied_config, field), text) {
            (false, _) => Some(initial),
            (true, "") => None,
            // The API accepts only valid addresses. A value from an older version that does not
            // parse falls back to the command line.
            (true, text) => Some(text.parse().unwrap_or(initial)),
        },
        policy: match bind_address_hard_fail {
            true => BindPolicy::Fail,
            false => BindPolicy::Retry,
        },
    };
    (
        place("healthzBindAddress", healthz_bind_address, initial.health),
        place("metricsBindAddress", metrics_bind_address, initial.metrics),
    )
}

#[cfg(test)]
mod tests {
    use crds::{NodeProxySpec, ProxyProfileSpec};

    use super::*;
    use crate::engine::{Engine, MissingAssignment};
    use source::{Assignment, Delivery};

    const INITIAL: Addresses = Addresses {
        health: address([127, 0, 0, 1], 1),
        metrics: address([127, 0, 0, 1], 2),
    };

    const fn address(ip: [u8; 4], port: u16) -> SocketAddr {
        let [a, b, c, d] = ip;
        SocketAddr::new(
            std::net::IpAddr::V4(std::net::Ipv4Addr::new(a, b, c, d)),
            port,
        )
    }

    fn applied_config(profile: &str) -> AppliedConfig {
        let profile: ProxyProfileSpec = serde_saphyr::from_str(profile).expect("a spec");
        let spec = NodeProxySpec {
            config: EffectiveConfig::of(&profile),
            written_fields: crds::unsupported::written_fields(&profile),
            ..NodeProxySpec::default()
        };
        let assignment = Assignment {
            generation: Some(1),
            spec,
            reason: String::new(),
            unreadable: Vec::new(),
        };
        let mut engine = Engine::new("node-1", None, MissingAssignment::MayEnd);
        engine.apply(
            Delivery::Configuration(Some(assignment)),
            std::time::Instant::now(),
        );
        let applied_config = engine.view().applied_config();
        applied_config.expect("the settings are decided")
    }

    fn addresses(profile: &str) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let (health, metrics) = listen_configs(&applied_config(profile), INITIAL);
        (health.address, metrics.address)
    }

    #[test]
    fn a_profile_that_names_no_address_leaves_the_command_line_applied_config() {
        assert_eq!(
            addresses("{}"),
            (Some(INITIAL.health), Some(INITIAL.metrics))
        );
    }

    #[test]
    fn an_address_is_that_of_the_profile_and_an_empty_one_is_no_server() {
        assert_eq!(
            addresses("{healthzBindAddress: '', metricsBindAddress: '0.0.0.0:10249'}"),
            (None, Some(address([0, 0, 0, 0], 10249)))
        );
    }

    #[test]
    fn who_wants_to_fail_hard_does() {
        let policy = |profile| listen_configs(&applied_config(profile), INITIAL).0.policy;
        assert_eq!(policy("{}"), BindPolicy::Retry);
        assert_eq!(policy("{bindAddressHardFail: true}"), BindPolicy::Fail);
    }

    #[test]
    fn what_is_logged_is_the_profiles_choice_and_else_the_command_lines() {
        let initial = LogOptions {
            filter: "debug".to_owned(),
            format: LogFormat::Json,
            modules: Vec::new(),
        };
        let chosen = |profile| log_options(&applied_config(profile), &initial);
        assert_eq!(chosen("{}"), initial);
        assert_eq!(chosen("{logging: {flushFrequency: 1s}}"), initial);
        let written = chosen("{logging: {verbosity: 0}}");
        assert_eq!(written.filter, LogOptions::filter_of(0));
        assert_eq!(written.format, LogFormat::Json);
        let written = chosen("{logging: {format: text}}");
        assert_eq!(written.filter, "debug");
        assert_eq!(written.format, LogFormat::Text);
        let written = chosen("{logging: {vmodule: [{filePattern: 'sync*', verbosity: 4}]}}");
        assert_eq!(written.filter, "debug");
        let modules = written.modules.iter().map(ToString::to_string);
        assert_eq!(modules.collect::<Vec<_>>(), ["sync*=4"]);
    }

    #[test]
    fn servers_stay_where_they_are_through_changes_of_something_else() {
        let server_addresses = ServerAddresses::new(INITIAL, ServingState::Serving);
        let mut reported = server_addresses.health.subscribe();
        server_addresses.follow(
            &applied_config("{minSyncPeriod: 10ms}"),
            ServingState::Serving,
        );
        assert!(!reported.has_changed().expect("the sender is there"));
        server_addresses.follow(
            &applied_config("{healthzBindAddress: '127.0.0.1:9'}"),
            ServingState::Serving,
        );
        assert!(reported.has_changed().expect("the sender is there"));
        assert_eq!(
            reported.borrow_and_update().address,
            Some(address([127, 0, 0, 1], 9))
        );
    }
}
