//! The destinations of virtual servers as they were listed last in `/proc/net/ip_vs`.
//!
//! This file has all virtual servers with their destinations. A full read takes one request for each
//! of them and therefore ten times as long, so the file is compared more often. It lacks
//! thresholds, and what a commit changed is learned anew and not compared, so a full read remains
//! necessary.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::time::{Duration, Instant};

use dataplane::Family;
use netlink::ipvs::VirtualServerKey;

use super::known_servers::{LongRead, is_due};
use crate::allocation::number_of;

/// The list of the network namespace of this thread.
const PATH: &str = "/proc/thread-self/net/ip_vs";

/// How long it may take to read it, twice if need be: commits wait meanwhile. For each page of the list the kernel walks
/// over all virtual servers before it, so that ten times as many take up to a hundred times as long.
const LONGEST_LIST: Duration = Duration::from_millis(500);

/// A sum of hashes of the destinations of each virtual server, by mark.
type Sums = HashMap<u32, u64>;

/// The destinations of all families.
#[derive(Debug, Default)]
pub(super) struct KnownDestinations {
    families: [OfFamily; 2],
    last_read: Option<LongRead>,
}

#[derive(Debug, Default)]
struct OfFamily {
    sums: Sums,
    /// Whether a read found others than the one before.
    changed: bool,
}

// === impl KnownDestinations ===

impl KnownDestinations {
    /// Forgets the destinations of a virtual server that Signpost changes.
    pub(super) fn forget(&mut self, key: &VirtualServerKey) {
        self.of(key.family).sums.remove(&key.mark.value());
    }

    /// Forgets what was found of a family whose virtual servers are now read with all destinations.
    pub(super) fn forget_changes(&mut self, family: Family) {
        self.of(family).changed = false;
    }

    /// Reads the list if that is due. Returns whether another program has changed destinations of
    /// this family, once for each change.
    pub(super) fn observe_changed(&mut self, family: Family) -> bool {
        if is_due(self.last_read) {
            let began = Instant::now();
            // Without the list, as where /proc does not have it, full reads find the same later.
            if let Ok(found) = read_list(began) {
                self.compare(found, || read_list(began));
            }
            self.last_read = Some(LongRead::since(began));
        }
        std::mem::take(&mut self.of(family).changed)
    }

    /// Compares a list with the one before, and where they differ with another one: the kernel finds
    /// its place in a list by counting, so that one that changes while it is read may have a virtual
    /// server twice or not at all.
    fn compare(&mut self, found: [Sums; 2], read_again: impl FnOnce() -> io::Result<[Sums; 2]>) {
        let differs = |known: &OfFamily, found: &Sums| {
            let mut known = known.sums.iter();
            known.any(|(mark, sum)| found.get(mark).copied().unwrap_or_default() != *sum)
        };
        let mut all = self.families.iter().zip(&found);
        let found = match all.any(|(known, found)| differs(known, found)) {
            true => read_again(),
            false => Ok(found),
        };
        let Ok(found) = found else {
            // It is not known which of the two is right. The next list is learned.
            for known in &mut self.families {
                *known = OfFamily {
                    changed: true,
                    ..OfFamily::default()
                };
            }
            return;
        };
        for (known, found) in self.families.iter_mut().zip(found) {
            // The list of virtual servers shows those that are gone, unless they have no destinations.
            known.changed |= differs(known, &found);
            known.sums = found;
        }
    }

    fn of(&mut self, family: Family) -> &mut OfFamily {
        let [ipv4, ipv6] = &mut self.families;
        match family {
            Family::Ipv4 => ipv4,
            Family::Ipv6 => ipv6,
        }
    }
}

fn read_list(began: Instant) -> io::Result<[Sums; 2]> {
    read(BufReader::new(File::open(PATH)?), began)
}

/// Reads the destinations behind Signpost's marks, as `ip_vs_info_seq_show` prints them:
///
/// ```text
/// FWM  53400001 rr
///   -> 0A000105:1F90      Masq    1      0          0
///   -> [fd00:0010:0000:0001:0000:0000:0000:0005]:1F90      Masq    1      0          0
/// ```
///
/// The numbers of connections at the end are no part of the sums.
fn read(list: impl BufRead, began: Instant) -> io::Result<[Sums; 2]> {
    let mut sums = [Sums::new(), Sums::new()];
    let mut own = None;
    for (number, line) in list.lines().enumerate() {
        let line = line?;
        // Reading the clock may cost more than a line.
        if number % 256 == 0 && began.elapsed() > LONGEST_LIST {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("->") => {
                let Some(mark) = own else { continue };
                let address = words.next().unwrap_or_default();
                let [ipv4, ipv6] = &mut sums;
                let of_family = match address.starts_with('[') {
                    true => ipv6,
                    false => ipv4,
                };
                let mut hasher = DefaultHasher::new();
                (address, words.next(), words.next()).hash(&mut hasher);
                let sum: &mut u64 = of_family.entry(mark).or_default();
                *sum = sum.wrapping_add(hasher.finish());
            }
            Some("FWM") => {
                let mark = words
                    .next()
                    .and_then(|mark| u32::from_str_radix(mark, 16).ok());
                own = mark.filter(|mark| number_of(*mark).is_some());
                // The line does not say of which family it is. One without destinations is known, too.
                for sums in &mut sums {
                    own.map(|mark| *sums.entry(mark).or_default());
                }
            }
            _ => own = None,
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "IP Virtual Server version 1.2.1 (size=4096)\n\
                        Prot LocalAddress:Port Scheduler Flags\n  \
                        -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";

    fn list(destinations: &[&str]) -> String {
        let mark = crate::layout::MARKS.mark(1).expect("a mark").value();
        let lines = destinations.concat();
        let of_others =
            "TCP  0A600001:0050 rr\n  -> 0A000109:1F90      Masq    1      0          0\n";
        format!("{HEAD}FWM  {mark:08X} rr\n{lines}{of_others}FWM  00000007 rr\n{lines}")
    }

    fn sums(text: &str) -> [Sums; 2] {
        read(text.as_bytes(), Instant::now()).expect("text is read")
    }

    const FIRST: &str = "  -> 0A000105:1F90      Masq    1      0          0\n";
    const BUSY: &str = "  -> 0A000105:1F90      Masq    1      17         3\n";
    const LEAVING: &str = "  -> 0A000105:1F90      Masq    0      0          0\n";
    const OF_IPV6: &str =
        "  -> [fd00:0010:0000:0001:0000:0000:0000:0005]:1F90      Masq    1      0          0\n";

    #[test]
    fn t376_destinations_count_and_their_connections_and_those_of_others_do_not() {
        let [alone, none] = sums(&list(&[FIRST]));
        assert_eq!((alone.len(), none.len()), (1, 1));
        assert_eq!([alone.clone(), none.clone()], sums(&list(&[BUSY])));
        assert_ne!(alone, sums(&list(&[LEAVING]))[0]);
        assert_ne!(alone, sums(&list(&[FIRST, LEAVING]))[0]);
        assert_eq!(sums(&list(&[])), [none.clone(), none.clone()]);
        let both = sums(&list(&[OF_IPV6, FIRST]));
        assert_eq!(both[0], alone);
        assert_ne!(both[1], none);
    }

    /// Whether a list has others than the one before, if it reads the same again.
    fn is_another(known: &mut KnownDestinations, text: &str) -> bool {
        known.compare(sums(text), || Ok(sums(text)));
        std::mem::take(&mut known.of(Family::Ipv4).changed)
    }

    #[test]
    fn t376_what_signpost_changes_itself_is_no_change_of_others() {
        let mut known = KnownDestinations::default();
        let mark = crate::layout::MARKS.mark(1).expect("a mark");
        let family = Family::Ipv4;
        assert!(!is_another(&mut known, &list(&[FIRST])));
        known.forget(&VirtualServerKey { family, mark });
        assert!(!is_another(&mut known, &list(&[LEAVING])));
        assert!(!is_another(&mut known, &list(&[LEAVING])));
        assert!(is_another(&mut known, &list(&[FIRST])));
        assert!(is_another(&mut known, &list(&[])));
        assert!(is_another(&mut known, &list(&[FIRST])));
    }

    #[test]
    fn t376_a_list_that_changed_while_it_was_read_is_read_again() {
        let mut known = KnownDestinations::default();
        assert!(!is_another(&mut known, &list(&[FIRST])));
        known.compare(sums(&list(&[FIRST, FIRST])), || Ok(sums(&list(&[FIRST]))));
        assert!(!known.of(Family::Ipv4).changed);
        known.compare(sums(&list(&[LEAVING])), || Ok(sums(&list(&[LEAVING]))));
        known.forget_changes(Family::Ipv4);
        assert!(!is_another(&mut known, &list(&[LEAVING])));
    }
}
