//! Which flows are stale. Pure.

mod contested_endpoints;

use std::cell::RefCell;
use std::net::SocketAddr;

use dataplane::{Dataplane, Family, Port, Protocol, Target};
use netlink::conntrack::{Answers, Filter, Flow};

use crate::StaleCandidates;
use contested_endpoints::ContestedEndpoints;

/// Decides which flows of one family are stale.
#[derive(Debug, Clone)]
pub struct StaleFlows {
    stale_candidates: StaleCandidates,
    /// The programmed dataplane.
    programmed: Dataplane,
    /// Who may answer flows under that, and under what has been programmed since.
    contested_endpoints: RefCell<ContestedEndpoints>,
    newest_contested_endpoints: RefCell<ContestedEndpoints>,
}

// === impl StaleFlows ===

impl StaleFlows {
    /// The watchlist for `stale_candidates` when `programmed` is in the kernel.
    pub fn compile(stale_candidates: &StaleCandidates, programmed: &Dataplane) -> StaleFlows {
        StaleFlows {
            stale_candidates: stale_candidates.clone(),
            programmed: programmed.clone(),
            contested_endpoints: RefCell::default(),
            newest_contested_endpoints: RefCell::default(),
        }
    }

    /// The family of the flows.
    pub fn family(&self) -> Family {
        self.stale_candidates.family()
    }

    /// The dumps that are necessary.
    pub fn filters(&self) -> impl Iterator<Item = Filter> + '_ {
        let family = self.family();
        self.stale_candidates
            .protocols()
            .iter()
            .map(move |protocol| Filter {
                family,
                protocol: *protocol,
                answers: answers(*protocol),
            })
    }

    /// Whether `flow` is to be deleted.
    ///
    /// A flow to a frontend is stale unless one of the endpoints that may still answer it does,
    /// counting the endpoints of every Service with an equal claim to the frontend. If there are
    /// none, every flow to the frontend is stale. A flow to a removed frontend is stale if its
    /// destination was rewritten. For TCP and SCTP, only flows that were never answered can be
    /// stale: an established connection belongs to its two ends.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        self.decide(&self.programmed, &self.contested_endpoints, flow)
    }

    /// Like [`StaleFlows::is_stale`], if the kernel has been programmed to `programmed` since.
    pub(crate) fn is_stale_under(&self, programmed: &Dataplane, flow: &Flow) -> bool {
        self.decide(programmed, &self.newest_contested_endpoints, flow)
    }

    fn decide(
        &self,
        programmed: &Dataplane,
        contested_endpoints: &RefCell<ContestedEndpoints>,
        flow: &Flow,
    ) -> bool {
        let protocol = flow.protocol;
        if answers(protocol) == Answers::None && flow.status.is_answered() {
            return false;
        }
        let destination = flow.original.destination;
        let Some(port) = Port::new(destination.port()) else {
            return false;
        };
        let address = destination.ip();
        match programmed.frontend_at(address, protocol, port) {
            // In another program's zone, packets that were not redirected may never have reached
            // Signpost's rules: Open vSwitch tracks packets before they do.
            Some(_) if flow.zone != 0 && !flow.status.is_redirected() => false,
            // Of Services with equal claims, the first by name gets new connections, but takes no
            // existing ones from the others.
            Some(_) => !target(flow.reply.source).is_some_and(|from| {
                let mut claims = programmed.claims_at(address, protocol, port);
                let mut contested_endpoints = contested_endpoints.borrow_mut();
                claims.any(|(key, claims)| contested_endpoints.include(key, claims, &from))
            }),
            None => {
                flow.status.is_redirected()
                    && self
                        .stale_candidates
                        .was_frontend(address, protocol, port, programmed)
            }
        }
    }
}

fn target(from: SocketAddr) -> Option<Target> {
    let (address, port) = (from.ip(), Port::new(from.port())?);
    Some(Target { address, port })
}

/// Which flows of a protocol can be stale.
fn answers(protocol: Protocol) -> Answers {
    match protocol {
        Protocol::Udp => Answers::Any,
        Protocol::Tcp | Protocol::Sctp => Answers::None,
    }
}

#[cfg(test)]
mod tenant_tests;
#[cfg(test)]
mod tests;
