//! Destinations that checks read for the next read of everything.
//!
//! A read of everything takes one request for the destinations of each virtual server, which is most
//! of its time, and changes wait for it. So each check reads some of them, and the read of everything
//! only those that Signpost has changed since.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dataplane::Family;
use netlink::ipvs::{Destinations, VirtualServerKey};

/// The time after which a check reads no more of them: changes wait meanwhile.
const LONGEST: Duration = Duration::from_millis(50);
/// The number of virtual servers whose destinations are read before the time is looked at.
const AT_ONCE: usize = 128;

/// The destinations that have been read, of all families.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    read: BTreeMap<VirtualServerKey, Destinations>,
}

// === impl ReadAhead ===

impl ReadAhead {
    /// Reads the destinations of some of `servers` with `observe`. Returns whether those of all have
    /// been read.
    pub(super) fn observe_some<E>(
        &mut self,
        servers: impl Iterator<Item = VirtualServerKey>,
        mut observe: impl FnMut(
            Vec<VirtualServerKey>,
        ) -> Result<Vec<(VirtualServerKey, Destinations)>, E>,
    ) -> Result<bool, E> {
        let began = Instant::now();
        let unread: Vec<_> = servers.filter(|key| !self.read.contains_key(key)).collect();
        for some in unread.chunks(AT_ONCE) {
            if began.elapsed() > LONGEST {
                return Ok(false);
            }
            self.read.extend(observe(some.to_vec())?);
        }
        Ok(true)
    }

    /// Forgets the destinations of a virtual server that Signpost changes.
    pub(super) fn forget(&mut self, key: &VirtualServerKey) {
        self.read.remove(key);
    }

    /// Forgets all destinations of this family, and returns them.
    pub(super) fn take(&mut self, family: Family) -> BTreeMap<VirtualServerKey, Destinations> {
        let of_family = |key: &VirtualServerKey| key.family == family;
        self.read.extract_if(.., |key, _| of_family(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::layout::MARKS;

    /// Failure story T462.
    #[test]
    fn t462_each_check_reads_some_and_what_signpost_changes_is_read_again() {
        let key = |number| VirtualServerKey {
            family: Family::Ipv4,
            mark: MARKS.mark(number).expect("a mark"),
        };
        let servers = || (1..=1_000).map(key);
        let mut read_ahead = ReadAhead::default();
        let mut asked = Vec::new();
        let mut check = |read_ahead: &mut ReadAhead| {
            let mut read = Vec::new();
            let is_whole = read_ahead.observe_some(servers(), |some| {
                thread::sleep(LONGEST / 2);
                read.extend(some.clone());
                let found = some.into_iter().map(|key| (key, Destinations::new()));
                Ok::<_, ()>(found.collect())
            });
            asked.push(read.len());
            (is_whole, read)
        };
        let (is_whole, read) = check(&mut read_ahead);
        assert_eq!(is_whole, Ok(false));
        assert!(read.contains(&key(1)), "{read:?}");

        read_ahead.forget(&key(1));
        let mut others = Vec::new();
        while let (Ok(false), read) = check(&mut read_ahead) {
            others.extend(read);
        }
        assert!(others.contains(&key(1)), "{others:?}");
        assert!(asked.iter().all(|read| (1..=3 * AT_ONCE).contains(read)));
        assert_eq!(asked.iter().sum::<usize>(), 1_001);

        assert_eq!(read_ahead.take(Family::Ipv6).len(), 0);
        assert_eq!(read_ahead.take(Family::Ipv4).len(), 1_000);
        assert_eq!(read_ahead.take(Family::Ipv4).len(), 0);
    }
}
