//! What is known of other proxies on this node.

use foreign_proxy::{ForeignProxyScan, RulesWriter};
use tokio::sync::watch;

use crate::latest::post;

/// The last scan for other proxies, and what scans and changes by other programs say together.
#[derive(Debug)]
pub(crate) struct ForeignProxies {
    scan: watch::Sender<ForeignProxyScan>,
    changes: watch::Sender<()>,
    rules_writer: watch::Sender<RulesWriter>,
}

// === impl ForeignProxies ===

impl ForeignProxies {
    pub(crate) fn new() -> ForeignProxies {
        ForeignProxies {
            scan: watch::Sender::new(ForeignProxyScan::default()),
            changes: watch::Sender::new(()),
            rules_writer: watch::Sender::new(RulesWriter::default()),
        }
    }

    /// The last scan.
    pub(crate) fn scan(&self) -> watch::Receiver<ForeignProxyScan> {
        self.scan.subscribe()
    }

    pub(crate) fn post_scan(&self, scan: ForeignProxyScan) {
        self.rules_writer
            .send_modify(|writer| *writer = writer.after(&scan));
        post(&self.scan, scan);
    }

    /// Changes with each nf_tables change by another program that the agent is notified of.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(crate) fn post_change(&self) {
        // Each kube-proxy changes rules when it starts.
        self.rules_writer.send_replace(RulesWriter::Unknown);
        self.changes.send_replace(());
    }

    /// What all scans and changes until now say of the kube-proxy that wrote the rules.
    pub(crate) fn rules_writer(&self) -> RulesWriter {
        *self.rules_writer.borrow()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dataplane::Family;
    use foreign_proxy::process::KubeProxy;
    use foreign_proxy::{Found, Mode};

    use super::*;

    fn scan(kube_proxy: KubeProxy) -> ForeignProxyScan {
        let rules = [(Mode::Nftables, BTreeSet::from([Family::Ipv4]))];
        let found = Found {
            rules: rules.into(),
            ..Found::default()
        };
        ForeignProxyScan::Seen(found, kube_proxy)
    }

    /// Failure story T330. The rules that are left are those of a kube-proxy that runs, or that was started again.
    #[test]
    fn t330_after_a_change_by_another_program_it_counts_what_is_seen_from_then_on() {
        let answers = || {
            scan(KubeProxy::Answers {
                at: "127.0.0.1:10249",
            })
        };
        let silent = || scan(KubeProxy::Silent);
        let proxies = ForeignProxies::new();
        let may_run = || proxies.rules_writer().may_run_silently(&silent());
        proxies.post_scan(answers());
        proxies.post_change();
        proxies.post_scan(answers());
        proxies.post_scan(silent());
        assert!(
            !may_run(),
            "it changed rules, answered again, and was stopped"
        );
        proxies.post_scan(answers());
        proxies.post_change();
        proxies.post_scan(silent());
        assert!(
            may_run(),
            "another one was started, and the agent has its ports"
        );
    }
}
