//! The devices that are known to be in the flowtable, to notice what the kernel changes by itself: neither
//! a transaction nor a notification shows it.
//!
//! Before 6.16, the kernel forgets a device that ceases to exist, and does not add another one that comes
//! with its name; and it keeps one that is renamed (`nf_tables_flowtable_event` in
//! net/netfilter/nf_tables_api.c of 6.1). The watch of interfaces knows names, and not what happens between
//! two of its lists.

use std::collections::BTreeSet;
use std::sync::Arc;

use netlink::Named;
use netlink::link::LinkSocket;
use netlink::nf_tables::{ListedFlowtable, Operation};

use crate::flowtable;
use crate::table::Table;

static NONE: BTreeSet<Arc<str>> = BTreeSet::new();

/// The devices in the flowtable as of the last read or write; `None` without a flowtable.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct JoinedDevices(Option<BTreeSet<Arc<str>>>);

// === impl JoinedDevices ===

impl JoinedDevices {
    /// Those of a table that was read.
    pub(super) fn of(table: &Table) -> JoinedDevices {
        let mut flowtables = table.flowtables.iter();
        let own = flowtables.find(|(name, _)| flowtable::is_own(name));
        JoinedDevices(own.map(|(_, flowtable)| flowtable.devices.clone()))
    }

    /// Takes in `changes` that were written, as [`flowtable::changes`] returns them.
    pub(super) fn follow(&mut self, changes: &[Operation]) {
        for change in changes {
            match change {
                Operation::AddFlowtable(_) => self.0 = Some(self.0.take().unwrap_or_default()),
                Operation::AddDevice { device, .. } => {
                    self.0.get_or_insert_default().insert(Arc::clone(device));
                }
                Operation::DeleteDevice { device, .. } => {
                    self.0.get_or_insert_default().remove(device);
                }
                _ => self.0 = None,
            }
        }
    }

    /// Whether there is a flowtable.
    pub(super) fn has_flowtable(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the kernel, which has `listed` its flowtables, keeps a device that is not known, or has
    /// forgotten one that `exists`. Of one that does not exist, the watch of interfaces brings a change.
    pub(super) fn differ(
        &self,
        listed: &[Named<ListedFlowtable>],
        exists: impl FnMut(&str) -> bool,
    ) -> bool {
        let mut own = listed.iter().filter(|(name, _)| flowtable::is_own(name));
        let kept = match own.next() {
            Some((_, Ok((_, devices)))) => devices,
            Some((_, Err(_))) => return true,
            None => &NONE,
        };
        let known = self.0.as_ref().unwrap_or(&NONE);
        let mut forgotten = known.difference(kept).map(|device| &**device);
        !kept.is_subset(known) || forgotten.any(exists)
    }
}

/// Whether there is a network device of this name. If the kernel does not say, there may be.
pub(super) fn observe_existence(name: &str) -> bool {
    let socket = LinkSocket::open().ok();
    let found = socket.and_then(|mut socket| socket.observe(name).ok());
    found.is_none_or(|link| link.is_some())
}

#[cfg(test)]
mod tests {
    use dataplane::Family;

    use super::*;
    use crate::diff::diff;
    use crate::flowtable::tests::table;

    #[test]
    fn they_are_known_after_every_transaction() {
        let (nothing, off) = (Table::default(), table(None));
        let [none, one, two] = [&[][..], &["eth0"][..], &["veth1", "veth2"][..]]
            .map(|names: &[&str]| table(Some(names)));
        let mut replaced = one.clone();
        for flowtable in replaced.flowtables.values_mut() {
            flowtable.flowtable = None;
        }
        let tables = [&nothing, &off, &none, &one, &two];
        for observed in tables.into_iter().chain([&replaced]) {
            for desired in tables {
                let mut held = observed.clone();
                let mut joined = JoinedDevices::of(&held);
                for transaction in diff(Family::Ipv4, observed, desired).transactions() {
                    held.replay(transaction).expect("the kernel takes it");
                    joined.follow(&flowtable::changes(transaction));
                    assert_eq!(joined, JoinedDevices::of(&held), "{transaction}");
                }
            }
        }
    }

    #[test]
    fn a_device_that_came_again_or_was_renamed_differs_and_one_that_is_gone_does_not() {
        let table = table(Some(&["eth0", "veth1"]));
        let joined = JoinedDevices::of(&table);
        let (name, own) = table.flowtables.iter().next().expect("it has one");
        let differ = |kept: &[&str], exists: bool| {
            let devices = kept.iter().map(|device| Arc::from(*device)).collect();
            let own = own.flowtable.clone().expect("it is Signpost's");
            let listed = [(Arc::clone(name), Ok((own, devices)))];
            joined.differ(&listed, |_| exists)
        };
        assert!(!differ(&["eth0", "veth1"], true));
        assert!(differ(&["eth0"], true), "another one came with its name");
        assert!(!differ(&["eth0"], false), "it is gone");
        assert!(differ(&["eth0", "old1"], false), "it was renamed");
        assert!(joined.differ(&[], |_| true), "the flowtable is gone");
    }

    #[test]
    fn loopback_exists_and_what_has_no_name_of_a_device_does_not() {
        assert!(observe_existence("lo"));
        assert!(!observe_existence("signpost-none"));
    }
}
