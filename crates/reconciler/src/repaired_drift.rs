//! Changes by other programs to Signpost's rules, and their repair.

use std::cmp::Reverse;
use std::fmt;
use std::time::{Duration, SystemTime};

use backend::{Actor, Size};

/// A difference between what the kernel held and what it had been left with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairedDrift {
    /// When it was found.
    pub found: SystemTime,
    /// The last program known to have changed something, if a notification arrived and the kernel
    /// named the program.
    pub actor: Option<Actor>,
    /// How much Signpost had to write to restore the previous state.
    pub size: Size,
    /// How long the repair took: from the notification, or else from the start of the sync that
    /// found the damage.
    pub repaired_after: Duration,
}

/// Another program keeps changing Signpost's rules, so repairs are delayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairBackoff {
    /// Since when repairs are delayed.
    pub since: SystemTime,
    /// How many repairs were made before that.
    pub repairs: u32,
    /// The time within which they were made.
    pub within: Duration,
    /// The last program known to have changed something by then.
    pub actor: Option<Actor>,
}

/// The changes by one program since the process started, all of them repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftByProgram {
    /// Its name; `None` if the kernel did not name the program.
    pub program: Option<String>,
    /// The number of repairs.
    pub repairs: u64,
    /// When the last change was found.
    pub last: SystemTime,
    /// The size of all repairs together.
    pub size: Size,
}

/// The maximum number of programs kept: those with the latest changes.
const MOST_PROGRAMS: usize = 8;

// === impl DriftByProgram ===

impl DriftByProgram {
    /// Adds a repaired change to `drift_by_program`.
    pub(crate) fn add(drift_by_program: &mut Vec<DriftByProgram>, repaired_drift: &RepairedDrift) {
        let program = repaired_drift.actor.as_ref().map(|actor| &actor.program);
        let mut known = drift_by_program.iter_mut();
        if let Some(known) = known.find(|known| known.program.as_ref() == program) {
            known.repairs += 1;
            known.last = repaired_drift.found;
            known.size.elements += repaired_drift.size.elements;
            known.size.objects += repaired_drift.size.objects;
            return;
        }
        drift_by_program.push(DriftByProgram {
            program: program.cloned(),
            repairs: 1,
            last: repaired_drift.found,
            size: repaired_drift.size,
        });
        drift_by_program.sort_by_key(|entry| Reverse(entry.last));
        drift_by_program.truncate(MOST_PROGRAMS);
    }
}

// === impl RepairedDrift ===

impl fmt::Display for RepairedDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { elements, objects } = self.size;
        match &self.actor {
            Some(actor) => actor.fmt(f)?,
            None => f.write_str("another program")?,
        }
        write!(f, " had changed {elements} elements and {objects} objects")
    }
}

// === impl RepairBackoff ===

impl fmt::Display for RepairBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.actor {
            Some(actor) => actor.fmt(f)?,
            None => f.write_str("another program")?,
        }
        let RepairBackoff {
            repairs, within, ..
        } = self;
        let seconds = within.as_secs_f64();
        write!(
            f,
            " keeps changing the rules: repaired {repairs} times within {seconds:.1} s"
        )
    }
}

#[cfg(test)]
mod tests {
    use backend::Actor;

    use super::*;

    fn repaired_drift(program: &str, second: u64) -> RepairedDrift {
        RepairedDrift {
            found: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
            actor: Some(Actor {
                program: program.to_owned(),
                process: 4711,
            }),
            size: Size {
                elements: 3,
                objects: 1,
            },
            repaired_after: Duration::ZERO,
        }
    }

    #[test]
    fn repairs_are_counted_by_program_and_the_one_that_is_quiet_longest_is_forgotten() {
        let mut drift_by_program = Vec::new();
        let programs: Vec<String> = (0..8).map(|number| format!("p{number}")).collect();
        for (second, program) in (0..).zip(&programs) {
            DriftByProgram::add(&mut drift_by_program, &repaired_drift(program, second));
        }
        DriftByProgram::add(&mut drift_by_program, &repaired_drift("p0", 100));
        DriftByProgram::add(&mut drift_by_program, &repaired_drift("another", 101));
        assert_eq!(drift_by_program.len(), MOST_PROGRAMS);
        let find = |name: &str| {
            drift_by_program
                .iter()
                .find(|d| d.program.as_deref() == Some(name))
        };
        let first = find("p0").expect("it is known");
        assert_eq!(
            (first.repairs, first.size.elements, first.size.objects),
            (2, 6, 2)
        );
        assert!(find("another").is_some() && find("p1").is_none());
    }
}
