//! The Events of agents and operator.

use crate::condition::{ACCEPTED, CONFLICT, PROGRESSING};

/// The conditions of a profile whose change is announced by an Event, with the condition's reason.
/// Ready and Degraded follow from these and from the nodes, and would change with every node.
pub const ANNOUNCED: [&str; 3] = [ACCEPTED, PROGRESSING, CONFLICT];

/// A reason of an agent's Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventReason {
    /// The reason in the Event.
    pub name: &'static str,
    /// Whether a user should act on it.
    pub severity: Severity,
    /// What happened, and what to do about it.
    pub advice: &'static str,
}

/// The severity of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Nothing is wrong.
    Normal,
    /// Something is wrong.
    Warning,
}

macro_rules! reasons {
    ($($constant:ident = $name:literal, $severity:ident: $advice:literal;)+) => {
        $(
            #[doc = $advice]
            pub const $constant: EventReason =
                EventReason { name: $name, severity: Severity::$severity, advice: $advice };
        )+

        /// Every reason of an agent's Events.
        pub const REASONS: &[EventReason] = &[$($constant),+];
    };
}

reasons! {
    STARTING = "Starting", Normal:
        "The agent has started. Nothing to do.";
    RULES_DRIFTED = "RulesDrifted", Warning:
        "Another program changed Signpost's rules, and the agent has repaired them: check whether \
         the program that the note names should have changed them.";
    CONTESTED = "RulesContested", Warning:
        "Another program keeps changing Signpost's rules, and the agent delays repairs: proceed as \
         for condition RulesContested.";
    FOREIGN_PROXY = "ForeignProxyDetected", Warning:
        "Rules of another service proxy have appeared on the node: proceed as for condition ForeignProxyDetected.";
    HEALTH_SERVER_REFUSED = "FailedToStartProxierHealthcheck", Warning:
        "The agent cannot listen on healthzBindAddress: stop the process that the note names, or \
         choose another address. The agent tries again.";
    METRICS_SERVER_REFUSED = "FailedToStartMetricServer", Warning:
        "The agent cannot listen on metricsBindAddress: stop the process that the note names, or \
         choose another address. The agent tries again.";
    PROBE_SERVER_REFUSED = "FailedToStartProbeServer", Warning:
        "The agent cannot listen on its --probe-address, and its Pod is not Ready: stop the \
         process that the note names, or choose another address.";
    SCRAPE_SERVER_REFUSED = "FailedToStartScrapeServer", Warning:
        "The agent cannot listen on its --scrape-address, and its metrics are missing: stop the \
         process that the note names, or choose another address.";
    SERVICE_HEALTH_REFUSED = "FailedToStartServiceHealthcheck", Warning:
        "The agent cannot listen on the healthCheckNodePort of a Service: stop the process that \
         the note names, or give the Service another port.";
}
