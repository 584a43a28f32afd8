//! What an image is called.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The full name of an image: registry, repository and tag, such as
/// `ghcr.io/signpost/signpost-agent:0.1.0`.
///
/// Always with the registry: Docker takes a name without one for its own, containerd for nobody's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    repository: String,
    tag: String,
}

/// A text is no [`Reference`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not the name of an image: {reason}")]
pub struct ParseReferenceError {
    text: String,
    reason: &'static str,
}

// === impl Reference ===

impl Reference {
    /// What comes behind the last colon.
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

/// Splits `text`, or says what is wrong with it; the rules are those of
/// <https://pkg.go.dev/github.com/distribution/reference>.
fn parse(text: &str) -> Result<(&str, &str), &'static str> {
    let (repository, tag) = text.rsplit_once(':').ok_or("it has no tag")?;
    let (registry, path) = repository.split_once('/').ok_or("it has no registry")?;
    if !registry.contains(['.', ':']) && registry != "localhost" {
        return Err("it does not begin with a registry");
    }
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let component = |part: &str| !part.is_empty() && part.chars().all(lower);
    if !path.split('/').all(component) {
        return Err("its path may have lower-case letters, digits and ._- between slashes");
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if tag.is_empty() || tag.len() > 128 || !tag.chars().all(allowed) {
        return Err("its tag may have up to 128 letters, digits and ._-");
    }
    Ok((repository, tag))
}

impl FromStr for Reference {
    type Err = ParseReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (repository, tag) = parse(text).map_err(|reason| ParseReferenceError {
            text: text.to_owned(),
            reason,
        })?;
        Ok(Reference {
            repository: repository.to_owned(),
            tag: tag.to_owned(),
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.repository, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_name_is_split_at_its_tag() {
        for (text, tag) in [
            ("ghcr.io/signpost/signpost-agent:0.1.0", "0.1.0"),
            ("localhost:5000/agent:dev", "dev"),
        ] {
            let reference: Reference = text.parse().expect("a name");
            assert_eq!((reference.tag(), reference.to_string()), (tag, text.into()));
        }
    }

    #[test]
    fn what_is_no_full_name_is_refused_with_the_reason() {
        for (text, reason) in [
            ("agent", "no tag"),
            ("agent:1", "no registry"),
            ("signpost/agent:1", "begin with a registry"),
            ("ghcr.io/Signpost/agent:1", "lower-case"),
            ("ghcr.io//agent:1", "lower-case"),
            ("ghcr.io/agent:", "its tag"),
            ("ghcr.io/agent:a b", "its tag"),
            ("localhost:5000/agent", "no registry"),
        ] {
            let error = text.parse::<Reference>().expect_err("no name").to_string();
            assert!(error.contains(text) && error.contains(reason), "{error}");
        }
    }
}
