//! Whether the kube-proxy that wrote the rules on a node still runs.

use crate::process::KubeProxy;
use crate::{ForeignProxyScan, Legacy};

/// What is known of the kube-proxy that wrote the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RulesWriter {
    /// It may run although none answers: it was started after the agent, which has its ports.
    #[default]
    Unknown,
    /// It has answered, and nothing has changed rules since. If none answers any more, it has ended.
    Answered,
}

impl RulesWriter {
    /// Returns what is known after a scan. Where nothing of kube-proxy is left, rules that appear
    /// later are those of another one.
    pub fn after(self, scan: &ForeignProxyScan) -> RulesWriter {
        match scan {
            ForeignProxyScan::Seen(_, KubeProxy::Answers { .. }) => RulesWriter::Answered,
            ForeignProxyScan::Seen(found, KubeProxy::Silent) if found.is_taken_over() => {
                RulesWriter::Unknown
            }
            _ => self,
        }
    }

    /// Returns whether the writer of the rules of `scan` may run although it does not answer. The
    /// kernel announces no change of legacy tables, so there it may always.
    pub fn may_run_silently(self, scan: &ForeignProxyScan) -> bool {
        let ForeignProxyScan::Seen(found, KubeProxy::Silent) = scan else {
            return false;
        };
        !found.is_taken_over() && (self == RulesWriter::Unknown || found.legacy == Legacy::Chains)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use dataplane::Family;

    use super::*;
    use crate::{Found, Mode};

    fn scan(has_rules: bool, kube_proxy: KubeProxy) -> ForeignProxyScan {
        let families = BTreeSet::from([Family::Ipv4]);
        let rules = has_rules.then_some((Mode::Nftables, families));
        let found = Found {
            rules: BTreeMap::from_iter(rules),
            ..Found::default()
        };
        ForeignProxyScan::Seen(found, kube_proxy)
    }

    /// Failure story T330.
    #[test]
    fn t330_only_a_kube_proxy_that_answered_and_was_stopped_is_known_to_have_ended() {
        let answers = scan(
            true,
            KubeProxy::Answers {
                at: "127.0.0.1:10249",
            },
        );
        let silent = scan(true, KubeProxy::Silent);
        let nothing = scan(false, KubeProxy::Silent);
        // The agent started first.
        assert!(
            RulesWriter::default()
                .after(&silent)
                .may_run_silently(&silent)
        );
        // It answered, and was stopped.
        let stopped = RulesWriter::default().after(&answers).after(&silent);
        assert!(!stopped.may_run_silently(&silent));
        assert!(!stopped.may_run_silently(&answers), "it does not answer");
        // It was started again after its rules had been removed.
        let again = stopped.after(&nothing).after(&silent);
        assert!(again.may_run_silently(&silent));
        assert!(!again.may_run_silently(&nothing), "it has rules");
    }

    /// Another one was started where the first one had left its rules: the agent cannot hear of
    /// changes to legacy tables.
    #[test]
    fn t330_in_legacy_tables_any_may_run() {
        let answers = scan(
            true,
            KubeProxy::Answers {
                at: "127.0.0.1:10249",
            },
        );
        let found = Found {
            legacy: Legacy::Chains,
            ..Found::default()
        };
        let silent = ForeignProxyScan::Seen(found, KubeProxy::Silent);
        let stopped = RulesWriter::default().after(&answers);
        assert!(stopped.may_run_silently(&silent));
    }
}
