//! Claims that are not served, and the messages about them. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Claims, Refused};
use crate::{
    Frontend, FrontendKey, FrontendKind, ObjectKind, ObjectName, PersistentMap, Rejection,
    ServiceKey,
};

/// The claims that are not served, because the address belongs to another Service, the node or the
/// cluster. Comparing two values skips what they share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disputes {
    /// Claims on addresses that the Service may not have, on any port.
    pub(super) refused: PersistentMap<(IpAddr, ServiceKey), Refused>,
    /// Keys that more than one entitled Service claims.
    pub(super) contested: PersistentMap<FrontendKey, Contested>,
}

/// The claims on one key, shared with the frontends. Equal if the same Services claim it as the same
/// kinds, whatever they serve there.
#[derive(Debug, Clone)]
pub(super) struct Contested(pub(super) Claims<Arc<Frontend>>);

/// The address or frontend in dispute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Disputed {
    Address(IpAddr),
    Frontend(FrontendKey),
}

/// The report about one Service: the first item in full, and the number of others. One Service may
/// have ten thousand claims, and ten thousand Services may claim what one has.
struct Line<T> {
    first: T,
    more: usize,
}

type Lines<T> = BTreeMap<ServiceKey, Line<T>>;

// === impl Disputes ===

impl Disputes {
    /// The messages: one for each Service that is refused an address, one for each that another
    /// Service comes before, and one for each whose address others claim. The cost is proportional
    /// to the disputes.
    pub fn rejections(&self) -> Vec<Rejection> {
        let mut refused = Lines::new();
        let mut behind = Lines::new();
        let mut claimed = Lines::new();
        for ((address, claimant), claim) in self.refused.iter() {
            add(&mut refused, claimant, (*address, claim));
            if let Some((owner, kind)) = claim.reserved.owner() {
                add(
                    &mut claimed,
                    owner,
                    (kind, Disputed::Address(*address), claimant),
                );
            }
        }
        for (key, Contested(claims)) in self.contested.iter() {
            let (winner, frontend) = claims.winner();
            for (loser, lost) in claims.losers() {
                add(&mut behind, loser, (*key, lost.kind, winner));
                add(
                    &mut claimed,
                    winner,
                    (frontend.kind, Disputed::Frontend(*key), loser),
                );
            }
        }
        let refused = refused.into_iter().map(|(service, line)| {
            let (address, Refused { kind, reserved }) = line.first;
            let remedy = reserved.remedy();
            let message = format!("{address} is not served, because it {reserved}: {remedy}");
            rejection(
                &service,
                *kind,
                &message,
                line.more,
                "addresses of this Service are not served",
            )
        });
        let behind = behind.into_iter().map(|(service, line)| {
            let (key, kind, winner) = line.first;
            let message = format!("{key} is served for Service {winner}, which also claims it");
            rejection(
                &service,
                kind,
                &message,
                line.more,
                "are served for other Services",
            )
        });
        let claimed = claimed.into_iter().map(|(service, line)| {
            let (kind, place, claimant) = line.first;
            let message =
                format!("Service {claimant} claims {place} too; it stays with this Service");
            rejection(
                &service,
                kind,
                &message,
                line.more,
                "such claims have no effect",
            )
        });
        refused.chain(behind).chain(claimed).collect()
    }
}

// === impl Contested ===

impl PartialEq for Contested {
    fn eq(&self, other: &Contested) -> bool {
        self.0.are_of_same(&other.0)
    }
}

impl Eq for Contested {}

fn add<T: Ord>(lines: &mut Lines<T>, service: &ServiceKey, reported: T) {
    match lines.get_mut(service) {
        Some(line) => {
            line.more += 1;
            if reported < line.first {
                line.first = reported;
            }
        }
        None => {
            let (first, more) = (reported, 0);
            lines.insert(service.clone(), Line { first, more });
        }
    }
}

fn rejection(
    service: &ServiceKey,
    kind: FrontendKind,
    message: &str,
    more: usize,
    are: &str,
) -> Rejection {
    Rejection {
        object: ObjectName {
            kind: ObjectKind::Service,
            namespace: Arc::clone(&service.namespace),
            name: Arc::clone(&service.name),
        },
        field: kind.field().to_owned(),
        message: match more {
            0 => message.to_owned(),
            more => format!("{message}; {more} more {are}"),
        },
    }
}

impl fmt::Display for Disputed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disputed::Address(address) => address.fmt(f),
            Disputed::Frontend(key) => key.fmt(f),
        }
    }
}
