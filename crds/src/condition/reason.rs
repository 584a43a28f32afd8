//! The reasons of conditions, each with advice for the operator of the cluster.

use super::{
    ACCEPTED, API_SERVICE_REACHABLE, AVAILABLE, CONFLICT, CONNTRACK_CONFIGURED, CONNTRACK_PRESSURE,
    DEGRADED, FEATURES_HONOURED, FOREIGN_PROXY_DETECTED, IPTABLES_SPLIT, IPV4_PROGRAMMED,
    IPV6_PROGRAMMED, MANIFESTS_PARSED, PROGRESSING, READY, RULES_CONTESTED, SOURCE_SYNCED,
};

/// Why a condition has its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason {
    /// The reason in the condition.
    pub name: &'static str,
    /// The condition types it is used with; none if it is used elsewhere in a status.
    pub conditions: &'static [&'static str],
    /// What to do about it.
    pub advice: &'static str,
}

macro_rules! reasons {
    ($($constant:ident = $name:literal for [$($condition:ident),*]: $advice:literal;)+) => {
        $(
            #[doc = $advice]
            pub const $constant: Reason =
                Reason { name: $name, conditions: &[$($condition),*], advice: $advice };
        )+

        /// Every reason.
        pub const ALL: &[Reason] = &[$($constant),+];
    };
}

reasons! {
    // A node and its rules.
    PROGRAMMED = "Programmed" for [READY]:
        "Nothing to do: everything the profile and the Services ask for is programmed.";
    STARTING = "Starting" for [READY, PROGRESSING, IPV4_PROGRAMMED, IPV6_PROGRAMMED]:
        "Wait: the agent has started but has not written to the kernel yet; rules from before its \
         start still forward. If this persists, see SourceSynced.";
    PARTIALLY_PROGRAMMED = "PartiallyProgrammed" for [READY, DEGRADED]:
        "Only one address family is served: read IPv4Programmed and IPv6Programmed for which one and why.";
    COMMIT_FAILED = "CommitFailed" for [READY, DEGRADED, IPV4_PROGRAMMED, IPV6_PROGRAMMED]:
        "The kernel refused the last change and keeps forwarding by the previous rules: read the \
         message for the error and the object, and check the node's kernel log.";
    XTABLES_LOCK_HELD = "XtablesLockHeld" for [READY, DEGRADED, IPV4_PROGRAMMED, IPV6_PROGRAMMED]:
        "Another program holds the lock of legacy iptables for longer than the agent waits; the \
         kernel keeps forwarding by the previous rules, and the agent retries: find the program \
         with lslocks on the node (/run/xtables.lock), and find out why it hangs.";
    KERNEL_UNSUPPORTED = "KernelUnsupported" for [READY, DEGRADED, IPV4_PROGRAMMED, IPV6_PROGRAMMED]:
        "The node's kernel lacks a feature that the mode needs: load the module that the message \
         names, or assign the node a profile with another mode.";
    FAMILY_PROGRAMMED = "FamilyProgrammed" for [IPV4_PROGRAMMED, IPV6_PROGRAMMED]:
        "Nothing to do: everything is programmed for this address family.";
    SLOW = "Slow" for [READY, PROGRESSING]:
        "Syncs succeed but take more than ten seconds, and until a sync ends traffic may reach \
         removed endpoints: /debug/syncs shows which phase takes the time. If it is commit, another \
         program holds the lock of nf_tables; if it is compile, the CPU is busy.";
    AGENT_SILENT = "AgentSilent" for [READY, DEGRADED]:
        "The node's agent has not reported for too long; the kernel keeps forwarding: check \
         whether the agent's Pod runs and reaches the API server.";
    NO_CONFIGURATION = "NoConfiguration" for [READY]:
        "No profile has reached this node: create one whose nodeSelector selects it, or check \
         whether the operator runs.";
    NOT_REPORTED = "NotReported" for []:
        "Type `kubectl signpost check`: it says whether the agent's Pod runs, and what its container waits for.";

    UNDISTURBED = "Undisturbed" for [RULES_CONTESTED]:
        "Nothing to do: no other program changes the rules; if the message reports a repair, check whether the program it names should have changed them.";
    REPAIRS_HELD_BACK = "RepairsHeldBack" for [RULES_CONTESTED, DEGRADED]:
        "Stop the program the message names from flushing or editing tables ip signpost and ip6 signpost, or \
         in mode iptables the chains SIGNPOST-* and the rules that jump to them; until then \
         Services fail repeatedly, for up to a few seconds each time.";

    // A node and another proxy.
    HANDED_BACK = "HandedBack" for [READY, PROGRESSING, IPV4_PROGRAMMED, IPV6_PROGRAMMED]:
        "This node's Services were handed back to another proxy, by the profile or by a command. To \
         serve them with Signpost again, stop kube-proxy so that \
         nothing starts it again (https://github.com/signpost/signpost/blob/main/docs/migrate.md), then type `kubectl signpost migrate takeover`, or set \
         spec.handover of the profile to Takeover.";
    HANDOVER_PENDING = "HandoverPending" for [PROGRESSING]:
        "Wait: the node has not carried out spec.handover of the profile yet. If this persists, read \
         conditions Ready and Degraded of the node.";
    HANDOVER_REFUSED = "HandoverRefused" for [DEGRADED]:
        "The node refuses the takeover or handback that spec.handover of the profile asks for, and \
         serves as before: remove the causes that the message names, or set spec.handover to \
         Manual. The node tries again within minutes.";
    NONE_FOUND = "NoneFound" for [FOREIGN_PROXY_DETECTED]:
        "Nothing to do: no rules of another service proxy are on the node.";
    KUBE_PROXY_NFTABLES = "KubeProxyNftables" for [FOREIGN_PROXY_DETECTED]:
        "The node has rules of kube-proxy's mode nftables beside Signpost's, and both forward \
         traffic: stop kube-proxy so that \
         nothing starts it again (https://github.com/signpost/signpost/blob/main/docs/migrate.md), then type `kubectl signpost migrate takeover`, or set \
         spec.handover of the profile to Takeover.";
    KUBE_PROXY_IPTABLES = "KubeProxyIptables" for [FOREIGN_PROXY_DETECTED]:
        "The node has rules of kube-proxy's mode iptables beside Signpost's, and both forward \
         traffic: stop kube-proxy so that \
         nothing starts it again (https://github.com/signpost/signpost/blob/main/docs/migrate.md), then type `kubectl signpost migrate takeover`, or set \
         spec.handover of the profile to Takeover.";
    KUBE_PROXY_IPVS = "KubeProxyIpvs" for [FOREIGN_PROXY_DETECTED]:
        "The node has virtual servers of kube-proxy's mode ipvs beside Signpost's rules, which new \
         connections follow: stop kube-proxy so that \
         nothing starts it again (https://github.com/signpost/signpost/blob/main/docs/migrate.md), then type `kubectl signpost migrate takeover`, or set \
         spec.handover of the profile to Takeover.";
    KUBE_PROXY_ENDING = "KubeProxyEnding" for [FOREIGN_PROXY_DETECTED]:
        "Wait: Signpost serves the node. Connections from before the takeover continue through \
         kube-proxy's virtual servers, and the agent removes each of these when its last connection \
         has ended; ipvsadm --list --numeric on the node names those with connections.";
    LEGACY_RULES_UNREAD = "LegacyRulesUnread" for [FOREIGN_PROXY_DETECTED]:
        "Nothing to do if kube-proxy never ran in mode iptables. Otherwise run \
         iptables-legacy-save -t nat on the node: only this command shows whether legacy iptables \
         holds kube-proxy's rules.";
    RULES_UNREADABLE = "RulesUnreadable" for [FOREIGN_PROXY_DETECTED]:
        "The agent cannot determine whether rules of another proxy are on the node: read the \
         message for the cause, and check whether the agent has CAP_NET_ADMIN.";

    // A node and the variants of iptables.
    ONE_VARIANT_IN_USE = "OneVariantInUse" for [IPTABLES_SPLIT]:
        "Nothing to do: all iptables rules on the node are in the variant that Signpost uses.";
    BOTH_VARIANTS_IN_USE = "BothVariantsInUse" for [IPTABLES_SPLIT]:
        "Packets traverse the rules of both variants, and no program shows both: move every \
         program on the node to one variant (update-alternatives --set iptables), then remove the \
         rules that remain in the other with its own program (iptables-legacy -F and -X, or \
         iptables-nft), or reboot.";
    VARIANTS_UNREADABLE = "VariantsUnreadable" for [IPTABLES_SPLIT]:
        "The agent cannot read the rules of every iptables variant and uses the variant that the \
         message names: read the message for the cause.";

    // A node and its sources.
    LISTS_COMPLETE = "ListsComplete" for [SOURCE_SYNCED]:
        "Nothing to do: the agent has read everything and follows changes.";
    LISTS_PENDING = "ListsPending" for [SOURCE_SYNCED, READY]:
        "Wait: the agent has not finished the initial list, and removes nothing until then; if \
         this persists, see the agent's log for the API server's answers.";
    SOURCE_STALE = "SourceStale" for [SOURCE_SYNCED, READY, DEGRADED]:
        "The agent cannot reach its source and serves the state that it last read: check the \
         network to the API server, or the directory of manifests.";
    MANIFESTS_READ = "ManifestsRead" for [MANIFESTS_PARSED]:
        "Nothing to do: every file in the directory of manifests was read.";
    MANIFESTS_UNREADABLE = "ManifestsUnreadable" for [MANIFESTS_PARSED, DEGRADED]:
        "Correct the files that the message names; until then the agent serves their last good objects.";

    // A node and what the profile and the Services ask for.
    ALL_HONOURED = "AllHonoured" for [FEATURES_HONOURED]:
        "Nothing to do: everything the profile and the Services ask for is supported.";
    MODE_NOT_HONOURED = "ModeNotHonoured" for [FEATURES_HONOURED]:
        "This version does not support the mode, or the node cannot use it, and nftables is used \
         instead: remove the cause that the message names, set spec.mode to nftables, or update \
         the agent.";
    FIELD_NOT_HONOURED = "FieldNotHonoured" for [FEATURES_HONOURED]:
        "The fields that the message names have no effect, or only part of it, for the reason \
         given there: remove them from the profile, change what the message names on the node, or \
         update the agent.";
    SERVICES_REJECTED = "ServicesRejected" for [FEATURES_HONOURED, DEGRADED]:
        "Some Services ask for something that cannot be programmed; status.rejections names object \
         and field. Every other Service is served.";
    AFFINITY_EXHAUSTED = "AffinityExhausted" for [FEATURES_HONOURED]:
        "The Services that the message names are served, but without session affinity for new \
         clients: set a shorter sessionAffinityConfig.clientIP.timeoutSeconds, and block UDP from \
         forged addresses with loadBalancerSourceRanges or a firewall.";

    // A node and its connection tracking table.
    TABLE_FILLING = "TableFilling" for [CONNTRACK_PRESSURE]:
        "Raise conntrack.maxPerCore or conntrack.min, or find what opens so many connections (conntrack -L): when the table is full, the kernel drops new ones.";
    TABLE_ROOMY = "TableRoomy" for [CONNTRACK_PRESSURE]:
        "Nothing to do: the connection tracking table has room.";
    TABLE_UNREADABLE = "TableUnreadable" for [CONNTRACK_PRESSURE]:
        "The agent can no longer read how full the connection tracking table is: check whether the \
         module nf_conntrack is loaded and the agent may read /proc/sys/net/netfilter.";
    LIMITS_SET = "LimitsSet" for [CONNTRACK_CONFIGURED]:
        "Nothing to do: the kernel has the limits and timeouts of the profile, or higher limits.";
    LIMITS_NOT_SET = "LimitsNotSet" for [CONNTRACK_CONFIGURED]:
        "The agent cannot write the files the message names: mount /proc/sys/net/netfilter \
         writable and run the agent in the node's network namespace, set the values on the node, \
         or set the fields to 0.";
    STALE_FLOWS_LEFT = "StaleFlowsLeft" for [DEGRADED]:
        "Clients that keep their source port may still reach removed endpoints: read the message for what the kernel refused; the agent tries again.";

    // A node and new connections.
    CONNECTED = "Connected" for [API_SERVICE_REACHABLE]:
        "Nothing to do: new connections reach the API server through its Service.";
    CONNECTION_FAILED = "ConnectionFailed" for [API_SERVICE_REACHABLE, DEGRADED]:
        "The rules are programmed, but new connections through them fail, while the agent reaches the API server: look for other rules that drop the packets (nft list ruleset), type `kubectl signpost explain svc/kubernetes --namespace default --node NODE`, and return to the previous configuration if this one caused it.";
    NOT_CHECKED = "NotChecked" for [API_SERVICE_REACHABLE]:
        "Nothing to do: the node is not ready yet, the API server does not answer, another proxy serves the node, or Service default/kubernetes has no endpoints.";

    // A change that is being applied.
    APPLYING = "Applying" for [PROGRESSING]:
        "Wait: the node is applying the configuration in its spec.";
    ROLLING_OUT = "RollingOut" for [PROGRESSING]:
        "Wait: nodes are applying a change of the profile; updatedNodes counts those that have.";
    SETTLED = "Settled" for [PROGRESSING]:
        "Nothing to do: every node has the profile's configuration.";
    PAUSED = "Paused" for [PROGRESSING]:
        "Nodes keep their configuration while spec.paused is true: set it to false to let changes through.";
    DEADLINE_EXCEEDED = "DeadlineExceeded" for [PROGRESSING, DEGRADED]:
        "Nodes took longer than rollout.progressDeadline. `kubectl signpost nodes --not-ready` names them, each with \
         what to do; without the plugin, look at status.worstNodes and their NodeProxy objects.";
    HALTED = "Halted" for [PROGRESSING]:
        "A wave of the rollout failed and no further node changes: correct or revert the profile.";
    HELD_BACK = "HeldBack" for [PROGRESSING, DEGRADED]:
        "Nodes that joined the profile after its rollout failed with its configuration, so other \
         nodes that join keep the configuration that they have: repair the nodes that the message \
         names, or select another profile for them.";
    ROLLED_BACK = "RolledBack" for [PROGRESSING, DEGRADED]:
        "A wave of the rollout failed and its nodes were rolled back: look at the nodes the message names, then correct the profile.";
    ABORTED = "Aborted" for []:
        "Nothing to do if this is intended: rollout.abort of the profile names the configuration. \
         `kubectl signpost rollout retry PROFILE` tries it again.";
    NODE_NOT_READY = "NodeNotReady" for []:
        "A node became NotReady, or its kubelet stopped reporting, after it had got the change, and \
         the wave failed: find the cause with kubectl describe node, then type \
         `kubectl signpost rollout retry PROFILE`.";
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded" for []:
        "The node did not report within rollout.progressDeadline that it is ready: look for its \
         agent with `kubectl signpost check`, then type `kubectl signpost rollout retry PROFILE`.";

    // Whether anything is wrong.
    AS_EXPECTED = "AsExpected" for [DEGRADED]:
        "Nothing to do: no problem was found.";
    NODES_DEGRADED = "NodesDegraded" for [DEGRADED]:
        "Type `kubectl signpost nodes --not-ready`: it names the nodes, each with what to do. Without the \
         plugin, look at status.worstNodes, and at condition Degraded of their NodeProxy objects.";

    // A profile and its nodes.
    ALL_NODES_PROGRAMMED = "AllNodesProgrammed" for [READY]:
        "Nothing to do: every node that this profile applies to is ready with it.";
    NODES_NOT_READY = "NodesNotReady" for [READY]:
        "Some nodes are not ready. `kubectl signpost nodes --not-ready` names them, each with what to do; \
         without the plugin, look at status.worstNodes, and at condition Ready of their NodeProxy objects.";
    ENOUGH_NODES_READY = "EnoughNodesReady" for [AVAILABLE]:
        "Nothing to do: no more nodes than rollout.maxUnavailable are not ready.";
    TOO_FEW_NODES_READY = "TooFewNodesReady" for [AVAILABLE]:
        "More nodes than rollout.maxUnavailable are not ready. `kubectl signpost nodes --not-ready` names \
         them, each with what to do; without the plugin, look at status.worstNodes, and at condition Ready \
         of their NodeProxy objects.";
    NO_MATCHING_NODES = "NoMatchingNodes" for [READY, AVAILABLE, PROGRESSING]:
        "Nothing to do if this is intended: the profile applies to no node. Otherwise compare its \
         nodeSelector with the labels of the nodes.";
    VALID = "Valid" for [ACCEPTED]:
        "Nothing to do: the configuration is valid.";
    INVALID_FIELD = "InvalidField" for [ACCEPTED, READY, DEGRADED]:
        "Correct the fields the message names; until then nodes keep their configuration.";
    INVALID_NODE_SELECTOR = "InvalidNodeSelector" for [ACCEPTED, READY, DEGRADED]:
        "Correct spec.nodeSelector; until then the profile is assigned to no further node.";
    UNREADABLE = "Unreadable" for [ACCEPTED, READY, DEGRADED]:
        "The object does not match its schema: apply the current CustomResourceDefinition, then the object again.";
    NO_CONFLICT = "NoConflict" for [CONFLICT]:
        "Nothing to do: no other profile of the same priority selects the same nodes.";
    OVERRIDDEN = "Overridden" for [CONFLICT]:
        "Nothing to do if this is intended: a profile with a lower priority number applies to the \
         nodes that the message counts.";
    SAME_PRIORITY = "SamePriority" for [CONFLICT]:
        "Profiles of the same priority select the same nodes, and the oldest applies: give them \
         different priorities or selectors.";
}

/// The reason with this name; `None` if it is not in [`ALL`].
#[must_use]
pub fn find(name: &str) -> Option<Reason> {
    ALL.iter().find(|reason| reason.name == name).copied()
}

/// The advice for the reason with this name; `None` if it is not in [`ALL`].
#[must_use]
pub fn advice(name: &str) -> Option<&'static str> {
    find(name).map(|reason| reason.advice)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::TYPES, *};

    #[test]
    fn every_reason_is_unique_and_says_what_to_do() {
        let names: BTreeSet<&str> = ALL.iter().map(|reason| reason.name).collect();
        assert_eq!(names.len(), ALL.len(), "two reasons share a name");
        let advices: BTreeSet<&str> = ALL.iter().map(|reason| reason.advice).collect();
        assert_eq!(advices.len(), ALL.len(), "two reasons share their advice");
        for reason in ALL {
            assert!(
                reason.name.bytes().all(|byte| byte.is_ascii_alphanumeric()),
                "{}",
                reason.name
            );
            assert!(
                reason
                    .name
                    .starts_with(|letter: char| letter.is_ascii_uppercase()),
                "{}",
                reason.name
            );
            assert!(
                reason.advice.len() > 20 && reason.advice.ends_with('.'),
                "{}: {}",
                reason.name,
                reason.advice
            );
            assert_eq!(advice(reason.name), Some(reason.advice));
        }
        assert_eq!(advice("OfAnotherController"), None);
    }

    #[test]
    fn every_condition_has_a_reason() {
        let types: BTreeSet<&str> = TYPES.iter().map(|kind| kind.name).collect();
        let of_reasons: BTreeSet<&str> = ALL
            .iter()
            .flat_map(|reason| reason.conditions)
            .copied()
            .collect();
        assert_eq!(of_reasons, types);
    }
}
