//! Looking again and again.

use netlink::Socket;

use super::look::is_unsupported;
use super::{DetectError, Found, TABLES, observe_variants};
use crate::Family;
use crate::legacy::kernel::{Info, Kernel};

/// Looks at both variants, and reads nothing where nothing has changed since the last look.
#[derive(Debug, Default)]
pub struct Lookout {
    last: Option<(Version, Found)>,
}

/// What changes with whatever is counted. In a legacy table that is its length: a rule in the place of
/// another of the same length is still a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    /// The generation of nf_tables, which every change of any program raises.
    generation: u32,
    /// What the kernel says of each legacy table that is there.
    legacy: Vec<(Family, String, Info)>,
}

// === impl Lookout ===

impl Lookout {
    /// What [`observe_variants`] finds, or has found last. Costs a few requests as long as nothing
    /// changes.
    pub fn observe(&mut self, prefix: &str) -> Result<Found, DetectError> {
        // Before the look: what is changed meanwhile is seen at the next one.
        let version = Version::observe();
        self.answer(version, || observe_variants(prefix))
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
    /// That of this thread's network namespace; `None` where the kernel does not say all of it.
    fn observe() -> Option<Version> {
        let generation = Socket::open().ok()?.observe_generation().ok()?;
        let mut legacy = Vec::new();
        for family in [Family::Ipv4, Family::Ipv6] {
            let kernel = match Kernel::open(family) {
                Ok(kernel) => kernel,
                Err(error) if is_unsupported(Some(&error)) => continue,
                Err(_) => return None,
            };
            let names = kernel.observe_names().ok()?.unwrap_or_default();
            // To ask for a table that is not there would make it.
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

    #[test]
    fn it_looks_anew_only_at_something_else_than_before() {
        let mut lookout = Lookout::default();
        let mut looks = 0;
        let mut looked_at = |version| {
            let before = looks;
            let found = lookout.answer(version, || {
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
