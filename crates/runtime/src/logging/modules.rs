//! Modules that log more than the rest of the program.

use std::fmt;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterFn, filter_fn};

use super::level_of;

/// The verbosity of all modules that a pattern names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleVerbosity {
    /// One or more consecutive parts of a module's path, such as `quarantine` or `domain::quarantine`
    /// of `reconciler::domain::quarantine`; modules below have it, too. `*` stands for any letters.
    pub pattern: String,
    /// The verbosity on klog's scale from 0 to 10.
    pub verbosity: u8,
}

/// Whether the verbosity of its module lets a line through.
pub(super) type ByModule = Box<dyn Fn(&Metadata<'_>) -> bool + Send + Sync>;

const SEPARATOR: &str = "::";

/// Lets through what `modules` add. As in klog, the first pattern that names a module decides, and
/// none takes away from what the rest of the program logs.
pub(super) fn filter(modules: &[ModuleVerbosity]) -> FilterFn<ByModule> {
    let most = modules.iter().map(ModuleVerbosity::level).max();
    let modules = modules.to_vec();
    let by_module: ByModule = Box::new(move |line| {
        let first = modules.iter().find(|module| module.names(line.target()));
        first.is_some_and(|module| *line.level() <= module.level())
    });
    filter_fn(by_module).with_max_level_hint(most.unwrap_or(LevelFilter::OFF))
}

// === impl ModuleVerbosity ===

impl ModuleVerbosity {
    fn level(&self) -> LevelFilter {
        level_of(self.verbosity)
    }

    fn names(&self, module: &str) -> bool {
        let pattern: Vec<&str> = self.pattern.split(SEPARATOR).collect();
        let path: Vec<&str> = module.split(SEPARATOR).collect();
        let mut places = path.windows(pattern.len());
        places.any(|parts| {
            parts
                .iter()
                .zip(&pattern)
                .all(|(part, of)| matches(part, of))
        })
    }
}

/// As klog's flag `--vmodule` has it.
impl fmt::Display for ModuleVerbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.verbosity)
    }
}

/// Whether `text` is `pattern`, in which each `*` stands for any letters.
fn matches(text: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return text == pattern;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    // The leftmost place of each piece leaves the most for those after it; the last one ends the text.
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let end = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some((_, after)) = text.split_once(piece) else {
            return false;
        };
        text = after;
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pattern: &str, module: &str) -> bool {
        let pattern = pattern.to_owned();
        ModuleVerbosity {
            pattern,
            verbosity: 4,
        }
        .names(module)
    }

    #[test]
    fn a_pattern_names_parts_of_a_path_and_what_is_below_them() {
        let quarantine = "reconciler::domain::quarantine";
        for pattern in [
            "quarantine",
            "domain",
            "reconciler",
            "domain::quarantine",
            "reconciler::domain::quarantine",
            "recon*",
            "*tine",
            "q*r*e",
            "*",
            "domain::*",
            "**",
        ] {
            assert!(names(pattern, quarantine), "{pattern}");
        }
        for pattern in [
            "quarant",
            "recon",
            "reconciler::quarantine",
            "quarantine::*",
            "q*x",
            "tine*",
            "",
            "reconciler::domain::quarantine::tests",
            // The letters of one piece do not count for another.
            "quaranti*tine",
        ] {
            assert!(!names(pattern, quarantine), "{pattern}");
        }
    }
}
