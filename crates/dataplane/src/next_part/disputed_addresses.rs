//! Later changes at the addresses of a part. They wait for it, or come with it.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::address_transfer::Settled;
use super::step::cluster_ips_of;
use super::{Divided, Ends, Piece, address_of, claimants};
use crate::{Frontend, FrontendKey, ServiceKey};

/// Looks up the changes at an address of Services that are not listed yet.
pub(super) struct DisputedAddresses<'a> {
    /// `None` if all changes are listed.
    unlisted: Option<Unlisted<'a>>,
}

struct Unlisted<'a> {
    ends: Ends<'a>,
    /// The Services of which all changes are listed.
    services: HashSet<&'a ServiceKey>,
    /// The frontends at link-local addresses that change.
    link_local: Vec<&'a FrontendKey>,
    /// The addresses that were looked up.
    addresses: HashSet<IpAddr>,
}

// === impl DisputedAddresses ===

impl<'a> DisputedAddresses<'a> {
    /// All changes are listed.
    pub(super) const NONE: DisputedAddresses<'a> = DisputedAddresses { unlisted: None };

    /// All changes of `services` are listed.
    pub(super) fn new(
        ends: Ends<'a>,
        services: HashSet<&'a ServiceKey>,
        link_local: Vec<&'a FrontendKey>,
    ) -> DisputedAddresses<'a> {
        DisputedAddresses {
            unlisted: Some(Unlisted {
                ends,
                services,
                link_local,
                addresses: HashSet::new(),
            }),
        }
    }

    /// Adds to the later changes the frontends that take packets of node ports which the part opens.
    pub(super) fn list_hidden_by_node_ports(&self, divided: &mut Divided<'a>) {
        let Some(Unlisted {
            ends, link_local, ..
        }) = &self.unlisted
        else {
            return;
        };
        let opened = divided.opened_node_ports();
        if opened.is_empty() {
            return;
        }
        let node = ends.desired.node();
        let all = ends.desired.config().node_ports.of(ends.family);
        let addresses: BTreeSet<IpAddr> = match all {
            Some(addresses) => addresses.iter().copied().collect(),
            None => node.local_addresses.iter().copied().collect(),
        };
        let claims = addresses
            .iter()
            .flat_map(|address| ends.claims_at(*address));
        let keys = claims.flat_map(|(_, entries)| entries.iter().map(|(key, _)| key));
        let keys = keys.chain(link_local.iter().copied());
        let is_opened = |key: &&'a FrontendKey| match key {
            FrontendKey::Address { protocol, port, .. } => opened.contains(&(*protocol, *port)),
            FrontendKey::NodePort { .. } => false,
        };
        divided.list(ends, keys.filter(is_opened));
    }

    /// Adds to the later changes those at each address about which the part may decide: of a frontend that
    /// changes, of a cluster IP of its Services, and of the API server.
    pub(super) fn list(&mut self, divided: &mut Divided<'a>, settled: &Settled) {
        let Some(unlisted) = &mut self.unlisted else {
            return;
        };
        let ends = unlisted.ends;
        let mut addresses = settled.deciding.clone();
        let chosen = divided.chosen.iter();
        let mut services: BTreeSet<&ServiceKey> = chosen
            .clone()
            .flat_map(|piece| claimants(&piece.difference))
            .collect();
        for address in &settled.deciding {
            for dataplane in [ends.programmed, ends.desired] {
                services.extend(dataplane.claims_on(*address).map(|(service, _)| service));
            }
        }
        addresses.extend(chosen.filter_map(Piece::address));
        if let Some((key, frontend)) = &divided.begun {
            addresses.extend(address_of(key));
            services.insert(&frontend.service_port.service);
        }
        addresses.extend(cluster_ips_of(&services, [ends.programmed, ends.desired]));
        // Thousands of external IPs may be those of the same Services, which decide nothing.
        let is_decided = |address: &IpAddr| {
            let both = [ends.programmed, ends.desired];
            settled.deciding.contains(address) || both.iter().any(|at| at.is_owned(*address))
        };
        addresses.retain(is_decided);
        if services.iter().any(|service| service.is_api_server()) {
            for dataplane in [ends.programmed, ends.desired] {
                addresses.extend(dataplane.api_servers());
            }
        }
        addresses.retain(|address| unlisted.addresses.insert(*address));
        let has_others = |address: &IpAddr| {
            let mut claims = ends.claims_at(*address);
            claims.any(|(service, _)| !unlisted.services.contains(service))
        };
        addresses.retain(has_others);
        let entries = addresses
            .iter()
            .flat_map(|address| ends.claims_at(*address));
        let keys = entries.flat_map(|(_, entries)| entries.iter().map(|(key, _)| key));
        divided.list(&ends, keys);
    }
}

// === impl Ends ===

impl<'a> Ends<'a> {
    /// The Services that claim `address` before or after, with their frontends there.
    fn claims_at(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (&'a ServiceKey, &'a [(FrontendKey, Arc<Frontend>)])> + use<'a> {
        let ends = [self.programmed, self.desired].into_iter();
        ends.flat_map(move |dataplane| dataplane.all_claims_on(address))
    }
}

// === impl Divided ===

impl<'a> Divided<'a> {
    /// Adds the changes at `keys` that are not listed yet to the later ones.
    fn list(&mut self, ends: &Ends<'a>, keys: impl Iterator<Item = &'a FrontendKey>) {
        let keys = keys.filter(|key| key.family() == ends.family);
        let mut keys: BTreeSet<&FrontendKey> = keys.collect();
        if keys.is_empty() {
            return;
        }
        for piece in self.chosen.iter().chain(&self.later) {
            keys.remove(piece.difference.key);
        }
        self.later
            .extend(keys.into_iter().filter_map(|key| ends.piece(key)));
    }
}
