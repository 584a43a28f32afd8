//! Selects which of Kubernetes' some 7,500 tests to run, and states why the others are left out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The groups of tests about Services, as prefixes of test names.
const GROUPS: [&str; 14] = [
    "[sig-network] API Server ",
    "[sig-network] Connectivity Pod Lifecycle ",
    "[sig-network] Conntrack ",
    "[sig-network] EndpointSlice ",
    "[sig-network] EndpointSliceMirroring ",
    "[sig-network] KubeProxy ",
    "[sig-network] LoadBalancers ",
    "[sig-network] Networking Granular Checks: Services ",
    "[sig-network] Networking should check kube-proxy urls",
    "[sig-network] Service CIDRs ",
    "[sig-network] ServiceCIDR and IPAddress API ",
    "[sig-network] Services ",
    "[sig-network] Traffic Distribution ",
    "[sig-network] [Feature:IPv6DualStack] ",
];

/// Markers in the names of tests that cannot run here, each with the reason.
const MARKS: [(&str, Omitted); 3] = [
    ("[Disruptive]", Omitted::Disruptive),
    ("[Feature:SCTPConnectivity]", Omitted::Sctp),
    ("[Feature:KubeProxyNFAcct]", Omitted::Iptables),
];

/// A marked test that is run separately after the others.
pub const PROXY_RESTART: &str =
    "[sig-network] Services should work after restarting kube-proxy [Disruptive]";

/// A selection as ginkgo's regular expressions: a test is run if it matches one of `focus` and none
/// of `skip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    focus: Vec<String>,
    skip: Vec<String>,
}

/// Why a test was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Omitted {
    /// It restarts components that other tests use at the same time.
    Disruptive,
    /// It requires a kernel with SCTP.
    Sctp,
    /// It is about a counter of kube-proxy's iptables mode.
    Iptables,
    /// It is not about Services.
    OtherMatter,
}

// === impl Selection ===

impl Selection {
    /// Selects all tests about Services that can run here concurrently.
    pub fn services() -> Selection {
        Selection {
            focus: GROUPS.map(quote).to_vec(),
            skip: MARKS.map(|(mark, _)| quote(mark)).to_vec(),
        }
    }

    /// Selects the tests with these names.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Selection {
        // Match up to the end: the names of some tests are prefixes of others.
        let focus = names.into_iter().map(|name| format!("{}$", quote(name)));
        Selection {
            focus: focus.collect(),
            skip: Vec::new(),
        }
    }

    /// Selects what the user requested, or [`Selection::services`] by default.
    pub fn given(focus: &[String], skip: &[String]) -> Selection {
        let Selection {
            focus: all,
            skip: marked,
        } = Selection::services();
        let or = |given: &[String], otherwise| {
            if given.is_empty() {
                otherwise
            } else {
                given.to_vec()
            }
        };
        Selection {
            focus: or(focus, all),
            skip: or(skip, marked),
        }
    }

    /// Returns the arguments for ginkgo.
    pub fn arguments(&self) -> Vec<String> {
        let focus = self
            .focus
            .iter()
            .map(|expression| format!("--focus={expression}"));
        let skip = self
            .skip
            .iter()
            .map(|expression| format!("--skip={expression}"));
        focus.chain(skip).collect()
    }
}

// === impl Omitted ===

impl Omitted {
    /// Returns why [`Selection::services`] leaves out a test of this name.
    pub fn of(name: &str) -> Omitted {
        if !GROUPS.iter().any(|group| name.starts_with(group)) {
            return Omitted::OtherMatter;
        }
        let mark = MARKS.iter().find(|(mark, _)| name.contains(mark));
        mark.map_or(Omitted::OtherMatter, |(_, reason)| *reason)
    }
}

impl fmt::Display for Omitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Omitted::Disruptive => "they restart what other tests need; of the two, see below",
            Omitted::Sctp => "they need a kernel with SCTP (`[Feature:SCTPConnectivity]`)",
            Omitted::Iptables => {
                "they are about a counter of iptables mode (`[Feature:KubeProxyNFAcct]`)"
            }
            Omitted::OtherMatter => "they are about something else than Services",
        })
    }
}

/// Returns a regular expression that matches only this text.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_punctuation() {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_run_has_a_reason() {
        let sctp = "[sig-network] Networking Granular Checks: Services should function for \
                    pod-Service: sctp [Feature:SCTPConnectivity]";
        assert_eq!(Omitted::of(sctp), Omitted::Sctp);
        assert_eq!(Omitted::of(PROXY_RESTART), Omitted::Disruptive);
        let other = "[sig-network] DNS should provide DNS for services [Conformance]";
        assert_eq!(Omitted::of(other), Omitted::OtherMatter);
        // The name starts like a group but belongs to another one.
        let other = "[sig-network] Service endpoints latency should not be very high [Conformance]";
        assert_eq!(Omitted::of(other), Omitted::OtherMatter);
    }

    #[test]
    fn names_are_no_expressions() {
        let selection = Selection::named([PROXY_RESTART]);
        let quoted = r"--focus=\[sig\-network\] Services should work after restarting kube\-proxy \[Disruptive\]$";
        assert_eq!(selection.arguments(), [quoted]);
    }

    #[test]
    fn what_a_person_asks_for_goes_before_what_is_usual() {
        let usual = Selection::services();
        assert_eq!(Selection::given(&[], &[]), usual);
        let asked = Selection::given(&["NodePort".to_owned()], &[]);
        assert_eq!(asked.focus, ["NodePort"]);
        assert_eq!(asked.skip, usual.skip);
    }
}
