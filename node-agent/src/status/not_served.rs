//! The Services that need a family that the kernel does not support. The cost is proportional to
//! the changes since the last update.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use dataplane::{Claims, Dataplane, Family, Frontend, FrontendKey, PersistentMap, ServiceKey};

type Frontends = PersistentMap<FrontendKey, Claims<Arc<Frontend>>>;

/// The Services of each family that the kernel does not support.
#[derive(Debug, Default)]
pub(crate) struct NotServed(BTreeMap<Family, OfFamily>);

#[derive(Debug, Default)]
struct OfFamily {
    /// The frontends as of the last update.
    followed: Frontends,
    /// The Services, each with its number of frontends.
    services: BTreeMap<ServiceKey, usize>,
}

// === impl NotServed ===

impl NotServed {
    /// Updates the desired state, and the families that the kernel does not support.
    pub(crate) fn follow(&mut self, lacking: &[Family], desired: Option<&Dataplane>) {
        self.0.retain(|family, _| lacking.contains(family));
        for family in lacking {
            let of_family = self.0.entry(*family).or_default();
            of_family.follow(*family, desired);
        }
    }

    /// Returns the Services that need `family` if the kernel does not support it.
    pub(super) fn services(&self, family: Family) -> impl ExactSizeIterator<Item = &ServiceKey> {
        static NONE: BTreeMap<ServiceKey, usize> = BTreeMap::new();
        let of_family = self.0.get(&family);
        of_family
            .map_or(&NONE, |of_family| &of_family.services)
            .keys()
    }
}

impl OfFamily {
    fn follow(&mut self, family: Family, desired: Option<&Dataplane>) {
        let nothing = Frontends::default();
        let after = desired.map_or(&nothing, Dataplane::frontends);
        for difference in self.followed.differences(after) {
            if difference.key.family() != family {
                continue;
            }
            if let Some(claims) = difference.before
                && let Entry::Occupied(mut counted) = self.services.entry(claims.winner().0.clone())
            {
                *counted.get_mut() -= 1;
                if *counted.get() == 0 {
                    counted.remove();
                }
            }
            if let Some(claims) = difference.after {
                *self.services.entry(claims.winner().0.clone()).or_default() += 1;
            }
        }
        self.followed = after.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired(services: &[(&str, &str)]) -> Dataplane {
        let mut dataplane = Dataplane::default();
        for (name, address) in services {
            let service = testkit::mk_service(name).cluster_ip(address);
            let service = service.port("http", 80).port("https", 443).build();
            let endpoints = testkit::mk_endpoints().build();
            let (node, config) = (dataplane.node(), dataplane.config());
            let rules = dataplane::compile(&service, &endpoints, node, config);
            dataplane.set(rules.into());
        }
        dataplane
    }

    fn named(not_served: &NotServed, family: Family) -> Vec<String> {
        let services = not_served.services(family);
        services.map(ServiceKey::to_string).collect()
    }

    #[test]
    fn t84_services_of_a_family_that_the_kernel_lacks_are_followed() {
        let lacking = [Family::Ipv6];
        let mut not_served = NotServed::default();
        let both = [
            ("a/four", "10.96.0.1"),
            ("b/six", "fd00::1"),
            ("c/six", "fd00::2"),
        ];
        not_served.follow(&[], Some(&desired(&both)));
        assert_eq!(named(&not_served, Family::Ipv6), [""; 0]);
        not_served.follow(&lacking, Some(&desired(&both)));
        assert_eq!(named(&not_served, Family::Ipv6), ["b/six", "c/six"]);
        assert_eq!(named(&not_served, Family::Ipv4), [""; 0]);
        not_served.follow(&lacking, Some(&desired(&both[..2])));
        assert_eq!(named(&not_served, Family::Ipv6), ["b/six"]);
        not_served.follow(&lacking, None);
        assert_eq!(named(&not_served, Family::Ipv6), [""; 0]);
    }
}
