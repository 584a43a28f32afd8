//! Repeated scans of both variants.

use netlink::Socket;

use super::look::is_unsupported;
use super::{DetectError, Found, TABLES, observe_through};
use crate::Family;
use crate::legacy::kernel::{Info, Kernel};

/// Scans both variants, and skips the scan if nothing has changed since the last one.
#[derive(Debug, Default)]
pub struct VariantDetector {
    /// While one is closed, the kernel holds the lock of nf_tables for an RCU grace period.
    socket: Option<Socket>,
    last: Option<(Version, Found)>,
}

/// A version that changes whenever the counts may change. For a legacy table its length suffices:
/// replacing a rule by another of the same length does not change the count.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    /// The nf_tables generation, which every change by any program raises.
    generation: u32,
    /// The kernel's description of each legacy table that exists.
    legacy: Vec<(Family, String, Info)>,
}

// === impl VariantDetector ===

impl VariantDetector {
    /// Returns what [`observe_variants`](super::observe_variants) finds, or found last if nothing has
    /// changed since; that costs only a few requests.
    pub fn observe(&mut self, prefix: &str) -> Result<Found, DetectError> {
        // Read before the scan, so that the next call notices a change made during the scan.
        let mut socket = self.socket.take();
        let version = Version::observe(&mut socket);
        let answer = self.answer(version, || observe_through(prefix, &mut socket));
        self.socket = socket;
        answer
    }

    fn answer(
        &mut self,
        version: Option<Version>,
        look: impl FnOnce() -> Result<Found, DetectError>,
    ) -> Result<Found, DetectError> {
        if let (Some(version), Some((known, found))) = (&version, &self.last)
            && version == known
        {
            return Ok(*found);
        }
        self.last = None;
        let found = look()?;
        self.last = version.map(|version| (version, found));
        Ok(found)
    }
}

// === impl Version ===

impl Version {
    /// The version in this thread's network namespace; `None` if part of it cannot be read.
    fn observe(kept: &mut Option<Socket>) -> Option<Version> {
        let mut socket = kept.take().map_or_else(Socket::open, Ok).ok()?;
        let generation = socket.observe_generation().ok()?;
        *kept = Some(socket);
        let mut legacy = Vec::new();
        for family in [Family::Ipv4, Family::Ipv6] {
            let kernel = match Kernel::open(family) {
                Ok(kernel) => kernel,
                Err(error) if is_unsupported(Some(&error)) => continue,
                Err(_) => return None,
            };
            let names = kernel.observe_names().ok()?.unwrap_or_default();
            // Only tables that exist: requesting any other would create it.
            for name in names {
                if TABLES.contains(&name.as_str()) {
                    let info = kernel.observe_info(&name).ok()?;
                    legacy.push((family, name, info));
                }
            }
        }
        Some(Version { generation, legacy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(generation: u32, entries: u32) -> Version {
        let info = Info {
            entries,
            ..Info::default()
        };
        Version {
            generation,
            legacy: vec![(Family::Ipv4, "nat".to_owned(), info)],
        }
    }

    /// Failure story T161.
    #[test]
    fn t161_a_look_leaves_its_socket_open() {
        let mut variant_detector = VariantDetector::default();
        for _ in 0..2 {
            // Without rights there is nothing to see.
            let seen = variant_detector.observe("SIGNPOST-");
            assert!(seen.is_err() || variant_detector.socket.is_some());
        }
    }

    #[test]
    fn it_looks_anew_only_at_something_else_than_before() {
        let mut variant_detector = VariantDetector::default();
        let mut looks = 0;
        let mut looked_at = |version| {
            let before = looks;
            let found = variant_detector.answer(version, || {
                looks += 1;
                let mut found = Found::default();
                found.legacy.rules = looks;
                Ok(found)
            });
            assert_eq!(found.expect("it can be read").legacy.rules, looks);
            looks > before
        };
        assert!(looked_at(Some(version(1, 4))), "nothing is known");
        assert!(!looked_at(Some(version(1, 4))), "nothing has changed");
        assert!(looked_at(Some(version(2, 4))), "nf_tables has");
        assert!(looked_at(Some(version(2, 5))), "a legacy table has");
        assert!(looked_at(None), "that is not known");
        assert!(
            looked_at(Some(version(2, 5))),
            "nor was it at the last attempt"
        );
        assert!(!looked_at(Some(version(2, 5))), "now it is");
    }
}
