//! How long IPVS remembers idle connections. The kernel has three such timeouts for each network
//! namespace, shared by the virtual servers of all programs.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use dataplane::IpvsTimeouts;
use netlink::ipvs::{ForeignVirtualServer, Seconds, Timeouts};

use crate::rules::print_foreign;

/// The most seconds that the kernel can count in ticks, for any HZ (`ip_vs_set_timeout`).
const LONGEST: u64 = 2_147_483;

/// Known or requested timeouts; `None` leaves a timeout as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdleTimeouts {
    pub(crate) tcp: Option<Seconds>,
    pub(crate) tcp_fin: Option<Seconds>,
    pub(crate) udp: Option<Seconds>,
}

// === impl IdleTimeouts ===

impl IdleTimeouts {
    /// The requested timeouts in whole seconds, rounded up.
    pub(crate) fn asked(asked: &IpvsTimeouts) -> IdleTimeouts {
        IdleTimeouts {
            tcp: asked.tcp.and_then(seconds),
            tcp_fin: asked.tcp_fin.and_then(seconds),
            udp: asked.udp.and_then(seconds),
        }
    }

    /// Whether no timeout is set differently in both.
    pub(crate) fn agree(&self, other: &IdleTimeouts) -> bool {
        let pairs = [
            (self.tcp, other.tcp),
            (self.tcp_fin, other.tcp_fin),
            (self.udp, other.udp),
        ];
        let mut pairs = pairs.into_iter();
        pairs.all(|(one, other)| one.is_none() || other.is_none() || one == other)
    }

    /// These timeouts, with those of `others` for the ones not set here.
    pub(crate) fn or(&self, others: IdleTimeouts) -> IdleTimeouts {
        IdleTimeouts {
            tcp: self.tcp.or(others.tcp),
            tcp_fin: self.tcp_fin.or(others.tcp_fin),
            udp: self.udp.or(others.udp),
        }
    }

    /// Whether `self` sets a timeout that `known` does not have or has differently.
    pub(crate) fn is_more_than(&self, known: &IdleTimeouts) -> bool {
        self.or(*known) != *known
    }

    /// The timeouts to write over `current`.
    pub(crate) fn over(&self, current: Timeouts) -> Timeouts {
        Timeouts {
            tcp: self.tcp.unwrap_or(current.tcp),
            tcp_fin: self.tcp_fin.unwrap_or(current.tcp_fin),
            udp: self.udp.unwrap_or(current.udp),
        }
    }
}

impl From<Timeouts> for IdleTimeouts {
    fn from(timeouts: Timeouts) -> IdleTimeouts {
        IdleTimeouts {
            tcp: Some(timeouts.tcp),
            tcp_fin: Some(timeouts.tcp_fin),
            udp: Some(timeouts.udp),
        }
    }
}

impl fmt::Display for IdleTimeouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timeouts")?;
        let all = [
            ("tcp", self.tcp),
            ("tcpfin", self.tcp_fin),
            ("udp", self.udp),
        ];
        for (name, Seconds(seconds)) in all
            .into_iter()
            .filter_map(|(name, seconds)| Some((name, seconds?)))
        {
            write!(f, " {name} {seconds} s")?;
        }
        Ok(())
    }
}

/// Says which virtual servers of other programs the timeouts of the profile affect.
pub(crate) fn affected_by_timeouts(
    timeouts: &IpvsTimeouts,
    foreign: &[ForeignVirtualServer],
) -> Option<String> {
    let fields = [
        ("ipvs.tcpTimeout", timeouts.tcp),
        ("ipvs.tcpFinTimeout", timeouts.tcp_fin),
        ("ipvs.udpTimeout", timeouts.udp),
    ];
    let set = fields.into_iter().filter(|(_, time)| time.is_some());
    let set: Vec<&str> = set.map(|(field, _)| field).collect();
    let named = print_foreign(foreign).filter(|_| !set.is_empty())?;
    let set = set.join(", ");
    Some(format!(
        "{set}: IPVS has one such timeout for all virtual servers of the node, so connections of other programs' \
         virtual servers end by it, too: {named}"
    ))
}

fn seconds(time: Duration) -> Option<Seconds> {
    let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let counted = u32::try_from(whole.min(LONGEST)).unwrap_or(u32::MAX);
    NonZeroU32::new(counted).map(Seconds)
}

#[cfg(test)]
mod tests {
    use netlink::ipvs::AddressedServer;

    use super::*;

    fn asked(milliseconds: u64) -> Option<u32> {
        let tcp = Some(Duration::from_millis(milliseconds));
        let asked = IpvsTimeouts {
            tcp,
            ..IpvsTimeouts::default()
        };
        IdleTimeouts::asked(&asked)
            .tcp
            .map(|Seconds(seconds)| seconds.get())
    }

    #[test]
    fn a_part_of_a_second_counts_as_one_and_no_time_leaves_the_kernels() {
        assert_eq!(asked(0), None);
        assert_eq!(asked(1), Some(1));
        assert_eq!(asked(900_000), Some(900));
        assert_eq!(asked(u64::MAX), Some(2_147_483));
    }

    #[test]
    fn what_is_not_asked_for_is_left_and_no_difference() {
        let seconds = |count| NonZeroU32::new(count).map(Seconds);
        let kernel = IdleTimeouts {
            tcp: seconds(900),
            tcp_fin: seconds(120),
            udp: seconds(300),
        };
        let asked = IdleTimeouts {
            udp: seconds(30),
            ..IdleTimeouts::default()
        };
        assert!(IdleTimeouts::default().agree(&kernel));
        assert!(!IdleTimeouts::default().is_more_than(&kernel));
        assert!(!asked.agree(&kernel));
        assert!(asked.is_more_than(&kernel));
        let after = asked.or(kernel);
        assert!(asked.agree(&after));
        assert!(!asked.is_more_than(&after));
        assert_eq!(after.tcp, kernel.tcp);
    }

    /// Virtual servers of other programs, as many as `count`.
    fn foreign(count: u8) -> Vec<ForeignVirtualServer> {
        let server = |last: u8| {
            ForeignVirtualServer::Addressed(AddressedServer {
                protocol: 6,
                address: ([192, 0, 2, last], 80).into(),
            })
        };
        (0..count).map(server).collect()
    }

    #[test]
    fn virtual_servers_of_others_are_named_only_while_they_and_a_timeout_are_there() {
        let set = IpvsTimeouts {
            tcp: Some(Duration::from_secs(900)),
            udp: Some(Duration::from_secs(42)),
            ..IpvsTimeouts::default()
        };
        let text = affected_by_timeouts(&set, &foreign(2)).expect("both are affected");
        assert!(
            text.starts_with("ipvs.tcpTimeout, ipvs.udpTimeout: "),
            "{text}"
        );
        assert!(
            text.ends_with(": TCP 192.0.2.0:80, TCP 192.0.2.1:80"),
            "{text}"
        );
        assert_eq!(affected_by_timeouts(&set, &[]), None);
        // Signpost's own connections alone.
        let drain = IpvsTimeouts {
            drain: Some(Duration::from_secs(42)),
            ..IpvsTimeouts::default()
        };
        assert_eq!(affected_by_timeouts(&drain, &foreign(2)), None);
    }

    #[test]
    fn of_many_virtual_servers_of_others_the_first_are_named_and_all_are_counted() {
        let set = IpvsTimeouts {
            tcp_fin: Some(Duration::from_secs(30)),
            ..IpvsTimeouts::default()
        };
        let text = affected_by_timeouts(&set, &foreign(200)).expect("all are affected");
        assert!(text.ends_with(", TCP 192.0.2.7:80 and 192 more"), "{text}");
    }
}
