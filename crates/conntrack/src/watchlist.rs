//! Which flows are stale. Pure.

use std::net::SocketAddr;

use dataplane::{Dataplane, Family, Frontend, Port, Protocol, Target};
use netlink::conntrack::{Answers, Filter, Flow};

use crate::Doubts;

/// What to look for among the flows of one family.
#[derive(Debug, Clone)]
pub struct Watchlist {
    doubts: Doubts,
    /// What is programmed.
    programmed: Dataplane,
}

// === impl Watchlist ===

impl Watchlist {
    /// What to look for because of `doubts`, now that `programmed` is in the kernel.
    pub fn compile(doubts: &Doubts, programmed: &Dataplane) -> Watchlist {
        Watchlist {
            doubts: doubts.clone(),
            programmed: programmed.clone(),
        }
    }

    /// The family it is about.
    pub fn family(&self) -> Family {
        self.doubts.family()
    }

    /// What has to be listed for it.
    pub fn filters(&self) -> impl Iterator<Item = Filter> + '_ {
        let family = self.family();
        self.doubts.protocols().iter().map(move |protocol| Filter {
            family,
            protocol: *protocol,
            answers: answers(*protocol),
        })
    }

    /// Whether the kernel is to forget `flow`.
    ///
    /// It is when it was addressed to a frontend and is answered by none of the endpoints
    /// that may still answer it, of any Service that claims it as the one that has it does: all
    /// flows of a frontend without any. So are those of a frontend
    /// that is gone, if their destination was rewritten. Of TCP and SCTP it is only what was never
    /// answered: a connection that was made belongs to its two ends.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        self.is_stale_under(&self.programmed, flow)
    }

    /// The same, had the kernel come to carry out `programmed` since.
    pub(crate) fn is_stale_under(&self, programmed: &Dataplane, flow: &Flow) -> bool {
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
            // In a zone of another program, packets that were not redirected may never have reached
            // Signpost's rules: Open vSwitch tracks packets on their way to them.
            Some(_) if flow.zone != 0 && !flow.status.is_redirected() => false,
            // Whose name comes first is given what is new, and takes no connection from another.
            Some(_) => !programmed
                .equals_at(address, protocol, port)
                .any(|frontend| may_answer(frontend, flow.reply.source)),
            None => {
                flow.status.is_redirected()
                    && self.doubts.was_ours(address, protocol, port, programmed)
            }
        }
    }
}

fn may_answer(frontend: &Frontend, from: SocketAddr) -> bool {
    Port::new(from.port()).is_some_and(|port| {
        let target = Target {
            address: from.ip(),
            port,
        };
        frontend.serving.binary_search(&target).is_ok()
    })
}

/// Which flows of a protocol can be stale at all.
fn answers(protocol: Protocol) -> Answers {
    match protocol {
        Protocol::Udp => Answers::Any,
        Protocol::Tcp | Protocol::Sctp => Answers::None,
    }
}

#[cfg(test)]
mod tests;
