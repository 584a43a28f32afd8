//! An address that one Service gets or loses as a cluster IP or load-balancer IP, and that is taken from
//! the external IPs of others, or given back to them, by that alone ([`Reserved`](crate::Reserved)).

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Divided, PartSize, Piece, address_of};
use crate::{Claims, Dataplane, Difference, Frontend, FrontendKey, FrontendKind, ServiceKey};

/// The addresses of which claims are programmed as desired, although no chosen change needs it.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// The claims that [decide](decides) about others.
    pub(super) deciding: BTreeSet<IpAddr>,
    /// All claims, where those alone did not do.
    all: BTreeSet<IpAddr>,
}

/// Whether a frontend decides which other Services may have its address.
pub(super) fn decides(frontend: &Frontend) -> bool {
    frontend.kind != FrontendKind::ExternalIp
}

fn owner(claims: Option<&Claims<Arc<Frontend>>>) -> Option<(&ServiceKey, FrontendKind)> {
    let (service, frontend) = claims?.winner();
    Some((service, frontend.kind))
}

// === impl Piece ===

impl Piece<'_> {
    /// Whether a Service loses the frontend because another one gets its address.
    pub(super) fn is_taken_away(&self, desired: &Dataplane) -> bool {
        let Difference { key, before, after } = self.difference;
        let loser = before.filter(|_| after.is_none());
        loser.is_some_and(|claims| desired.refusal(claims.winner().0, key).is_some())
    }

    /// Whether a Service gets the frontend because another one has lost its address.
    pub(super) fn is_given_back(&self, programmed: &Dataplane) -> bool {
        let Difference { key, before, after } = self.difference;
        let winner = after.filter(|_| before.is_none());
        winner.is_some_and(|claims| programmed.refusal(claims.winner().0, key).is_some())
    }

    /// Whether a Service that decides about its address gets the frontend, or loses it.
    fn changes_hands(&self) -> bool {
        let Difference { before, after, .. } = self.difference;
        self.decides() && owner(before) != owner(after)
    }

    /// Whether the frontend before or after decides which other Services may have its address.
    fn decides(&self) -> bool {
        let mut winners = self.winners().into_iter().flatten();
        winners.any(decides)
    }
}

// === impl Settled ===

impl Settled {
    /// Adds what is needed at these addresses. Returns whether that is anything new.
    pub(super) fn add(&mut self, addresses: BTreeSet<IpAddr>) -> bool {
        let known = self.deciding.len() + self.all.len();
        for address in addresses {
            if !self.deciding.insert(address) {
                self.all.insert(address);
            }
        }
        self.deciding.len() + self.all.len() > known
    }

    /// Whether a claim on `address` is to be as desired.
    pub(super) fn has(&self, address: IpAddr, decides: bool) -> bool {
        self.all.contains(&address) || decides && self.deciding.contains(&address)
    }
}

// === impl Divided ===

impl Divided<'_> {
    /// Adds the changes that are to be as desired.
    pub(super) fn add_settled(&mut self, settled: &Settled) {
        let is_settled = |piece: &mut Piece<'_>| {
            let address = piece.address();
            address.is_some_and(|address| settled.has(address, piece.decides()))
        };
        self.chosen.extend(self.later.extract_if(.., is_settled));
        self.begun.take_if(|(key, frontend)| match key {
            FrontendKey::Address { address, .. } => settled.has(*address, decides(frontend)),
            FrontendKey::NodePort { .. } => false,
        });
    }

    /// If an address changes hands, chooses the frontends that it is taken away from, as many as fit,
    /// and puts off its new owner until these are gone.
    pub(super) fn take_away_first(&mut self, desired: &Dataplane, limit: PartSize) {
        let begun = self.begun.iter().filter(|(_, frontend)| decides(frontend));
        let begun = begun.filter_map(|(key, _)| address_of(key));
        let deciding = self.chosen.iter().filter(|piece| piece.changes_hands());
        let decided: HashSet<IpAddr> = deciding.filter_map(Piece::address).chain(begun).collect();
        let is_taken = |piece: &Piece<'_>| {
            let address = piece
                .address()
                .filter(|address| decided.contains(address))?;
            piece.is_taken_away(desired).then_some(address)
        };
        let taken: HashSet<IpAddr> = self.later.iter().filter_map(is_taken).collect();
        if taken.is_empty() {
            return;
        }
        let is_at = |address: Option<IpAddr>| address.is_some_and(|at| taken.contains(&at));
        let put_off = |piece: &mut Piece<'_>| piece.changes_hands() && is_at(piece.address());
        let put_off: Vec<Piece<'_>> = self.chosen.extract_if(.., put_off).collect();
        self.begun.take_if(|(key, _)| is_at(address_of(key)));
        self.choose(limit, |piece| is_taken(piece).is_some());
        self.later.extend(put_off);
        self.is_small = false;
    }

    /// If an address changes hands, chooses what its old owner loses there, as much as fits, and puts
    /// off the frontends that others get there until all of that is gone.
    pub(super) fn give_back_last(&mut self, programmed: &Dataplane, limit: PartSize) {
        let given_back = |piece: &Piece<'_>| piece.is_given_back(programmed);
        let given = self.chosen.iter().filter(|piece| given_back(piece));
        let given: HashSet<IpAddr> = given.filter_map(Piece::address).collect();
        let decides = |piece: &Piece<'_>, at: &HashSet<IpAddr>| {
            piece.changes_hands() && piece.address().is_some_and(|address| at.contains(&address))
        };
        if !self.later.iter().any(|piece| decides(piece, &given)) {
            return;
        }
        self.choose(limit, |piece| decides(piece, &given));
        let left = self.later.iter().filter(|piece| decides(piece, &given));
        let left: HashSet<IpAddr> = left.filter_map(Piece::address).collect();
        let waits = |piece: &mut Piece<'_>| {
            given_back(piece) && piece.address().is_some_and(|at| left.contains(&at))
        };
        self.later.extend(self.chosen.extract_if(.., waits));
        self.is_small = false;
    }

    /// Chooses later changes that are `meant`, as many as fit into a part of their own, and at least
    /// one.
    fn choose(&mut self, limit: PartSize, meant: impl Fn(&Piece<'_>) -> bool) {
        let mut room = limit.count();
        let fits = |piece: &mut Piece<'_>| {
            let fits = room > 0 && meant(piece);
            room = room.saturating_sub(if fits { piece.size } else { 0 });
            fits
        };
        self.chosen.extend(self.later.extract_if(.., fits));
    }
}
