//! One allocation for each name, placement and port list that many objects repeat.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use crate::slice::{Placement, SlicePort};

/// The values that ten thousand objects repeat: names of Services, nodes, zones, namespaces and
/// ports, placements of endpoints, and port lists.
#[derive(Debug, Default)]
pub(crate) struct SharedNames {
    names: Shared<str>,
    placements: Shared<Placement>,
    ports: Shared<[SlicePort]>,
}

/// Values of one type, each stored once.
#[derive(Debug)]
struct Shared<T: ?Sized> {
    values: HashSet<Arc<T>>,
    sweep_at: usize,
}

/// Unused values are searched for only above this number.
const WORTH_SWEEPING: usize = 1024;

// === impl SharedNames ===

impl SharedNames {
    /// Returns `name` in its shared allocation.
    pub(crate) fn share(&mut self, name: &str) -> Arc<str> {
        self.names.share(name, |name| name.into())
    }

    /// Returns `placement` in its shared allocation; `None` if it is empty.
    pub(crate) fn share_placement(&mut self, placement: &Placement) -> Option<Arc<Placement>> {
        let said = *placement != Placement::default();
        said.then(|| self.placements.share(placement, |it| Arc::new(it.clone())))
    }

    /// Returns `ports` in their shared allocation.
    pub(crate) fn share_ports(&mut self, ports: &[SlicePort]) -> Arc<[SlicePort]> {
        self.ports.share(ports, |ports| ports.into())
    }
}

// === impl Shared ===

impl<T: ?Sized + Eq + Hash> Shared<T> {
    fn share(&mut self, value: &T, copy: impl FnOnce(&T) -> Arc<T>) -> Arc<T> {
        if let Some(known) = self.values.get(value) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.sweep_at.max(WORTH_SWEEPING) {
            self.values.retain(|known| Arc::strong_count(known) > 1);
            // The next sweep comes at twice the number in use, so that sweeping costs a constant
            // per new value.
            self.sweep_at = self.values.len() * 2;
        }
        let value = copy(value);
        self.values.insert(Arc::clone(&value));
        value
    }
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared {
            values: HashSet::new(),
            sweep_at: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use dataplane::{EndpointPort, Port, Protocol};

    use super::*;

    #[test]
    fn equal_names_share_their_text() {
        let mut names = SharedNames::default();
        let first = names.share("node-1");
        assert!(Arc::ptr_eq(&first, &names.share("node-1")));
    }

    #[test]
    fn unused_names_are_dropped() {
        let mut names = SharedNames::default();
        let kept = names.share("kept");
        for n in 0..100 * WORTH_SWEEPING {
            names.share(&format!("passing-{n}"));
        }
        assert!(names.names.values.len() <= 2 * WORTH_SWEEPING);
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
    }

    #[test]
    fn equal_ports_are_shared() {
        let mut names = SharedNames::default();
        let ports = |port: u16| {
            let name = EndpointPort {
                name: Arc::from("http"),
                protocol: Protocol::Tcp,
            };
            let port = Port::new(port).expect("not 0");
            [SlicePort { name, port }]
        };
        let first = names.share_ports(&ports(80));
        assert!(Arc::ptr_eq(&first, &names.share_ports(&ports(80))));
        assert_eq!(*names.share_ports(&ports(81)), ports(81));
    }

    #[test]
    fn equal_placements_are_shared_and_none_cost_nothing() {
        let mut names = SharedNames::default();
        let on = |node: &str| Placement {
            node: Some(Arc::from(node)),
            ..Placement::default()
        };
        let first = names.share_placement(&on("a")).expect("there is a node");
        let second = names.share_placement(&on("a")).expect("there is a node");
        assert!(Arc::ptr_eq(&first, &second));
        assert_ne!(Some(first), names.share_placement(&on("b")));
        assert_eq!(names.share_placement(&Placement::default()), None);
    }
}
