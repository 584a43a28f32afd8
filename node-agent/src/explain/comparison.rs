//! What is wanted for one Service beside what the kernel was seen to hold, in the words of the
//! mechanism that carries it out. Pure.

use backend::{Backend, Piece, Rendered, Standing as Found};
use backend_iptables::{Iptables, Rules};
use backend_nftables::{Nftables, Table};
use dataplane::{Dataplane, Family, FrontendKey, Mechanism};

use super::Evidence;
use super::answer::{PieceAnswer, PieceStanding};

/// One family of what is wanted for some Services, and of what was found; `None`: no kernel was read.
#[derive(Debug)]
pub(super) enum Comparison<'a> {
    /// Elements, and the chains they lead to.
    Nftables {
        /// What these Services alone come to.
        wanted: Table,
        found: Option<&'a Table>,
    },
    /// Rules, and the chains they are in.
    Iptables {
        /// What all Services come to: where a rule is depends on all the others.
        wanted: Box<Rules>,
        /// These Services.
        of: Box<Dataplane>,
        family: Family,
        found: Option<&'a Rules>,
    },
}

// === impl Comparison ===

impl<'a> Comparison<'a> {
    /// What `of` comes to in `family`, in the arrangement that is believed, beside what was found.
    /// `rules` are what everything comes to by rules of iptables.
    pub(super) fn new(
        family: Family,
        of: &Dataplane,
        rules: Option<&Rules>,
        evidence: &Evidence<'a>,
    ) -> Comparison<'a> {
        let found = evidence.kernel.held(family);
        match evidence.mechanism(family) {
            Mechanism::Nftables => {
                let believed = evidence.believed.get(&family);
                let from = Rendered {
                    dataplane: Dataplane::default(),
                    rules: believed
                        .map(|held| held.nftables.clone())
                        .unwrap_or_default(),
                };
                Comparison::Nftables {
                    wanted: Nftables::detached(family).render(of, &from),
                    found: found.map(|held| &held.nftables),
                }
            }
            Mechanism::Iptables => Comparison::Iptables {
                wanted: Box::new(rules.cloned().unwrap_or_default()),
                of: Box::new(of.clone()),
                family,
                found: found.map(|held| &held.iptables),
            },
        }
    }

    /// The elements or rules of one frontend.
    pub(super) fn elements(&self, key: &FrontendKey) -> Vec<PieceAnswer> {
        match self {
            Comparison::Nftables { wanted, found } => {
                answer(wanted, *found, |a, b| a.compare_elements(b, key))
            }
            Comparison::Iptables { wanted, found, .. } => {
                answer(&**wanted, *found, |a, b| a.compare_rules(b, key))
            }
        }
    }

    /// The chains that packets to one frontend pass and others do not.
    pub(super) fn chains(&self, key: &FrontendKey) -> Vec<PieceAnswer> {
        match self {
            Comparison::Nftables { wanted, found } => {
                let names = wanted.chains_of(key);
                answer(wanted, *found, |a, b| {
                    let mut chains = a.compare_chains(b);
                    let named = names.iter().filter_map(|name| chains.remove(name));
                    named.collect()
                })
            }
            Comparison::Iptables { wanted, found, .. } => {
                let names = wanted.chains_of(key);
                answer(&**wanted, *found, |a, b| a.compare_chains(b, &names))
            }
        }
    }

    /// Cluster IPs and endpoints of this node, in the sets or among the rules of those.
    pub(super) fn memberships(&self) -> Vec<PieceAnswer> {
        match self {
            Comparison::Nftables { wanted, found } => {
                answer(wanted, *found, Table::compare_memberships)
            }
            Comparison::Iptables {
                wanted,
                of,
                family,
                found,
            } => answer(&**wanted, *found, |a, b| {
                a.compare_memberships(b, of, *family)
            }),
        }
    }
}

/// The rules that everything comes to in `family`, where rules of iptables carry it out.
pub(super) fn render_rules(family: Family, evidence: &Evidence<'_>) -> Option<Rules> {
    let is_meant = evidence.mechanism(family) == Mechanism::Iptables;
    is_meant.then(|| {
        let backend = Iptables::detached(family, evidence.variant);
        backend.render(evidence.dataplane, &Rendered::default())
    })
}

/// The pieces that `compare` names, given what is wanted and what was found.
fn answer<R>(
    wanted: &R,
    found: Option<&R>,
    compare: impl FnOnce(&R, &R) -> Vec<Piece>,
) -> Vec<PieceAnswer> {
    let Some(found) = found else {
        let unverified = |piece: Piece| PieceAnswer {
            piece: piece.text,
            standing: PieceStanding::Unverified,
            found: Vec::new(),
        };
        return compare(wanted, wanted)
            .into_iter()
            .map(unverified)
            .collect();
    };
    compare(wanted, found).into_iter().map(verified).collect()
}

/// A piece that was looked for in the kernel.
pub(super) fn verified(piece: Piece) -> PieceAnswer {
    let (standing, found) = match piece.standing {
        Found::Present => (PieceStanding::Present, Vec::new()),
        Found::Missing => (PieceStanding::Missing, Vec::new()),
        Found::Unwanted => (PieceStanding::Unwanted, Vec::new()),
        Found::Different { found } => (PieceStanding::Different, found),
    };
    PieceAnswer {
        piece: piece.text,
        standing,
        found,
    }
}
