//! The name of an image.

use std::fmt;
use std::str::FromStr;

/// The full name of an image: registry, repository and tag, such as
/// `ghcr.io/signpost/signpost-agent:0.1.0`.
///
/// The registry is required: Docker resolves a name without one to its own registry, containerd to
/// none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    repository: String,
    tag: String,
}

// === impl Reference ===

impl Reference {
    /// Returns the part after the last colon.
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

impl FromStr for Reference {
    type Err = &'static str;

    /// Parses by the rules of <https://pkg.go.dev/github.com/distribution/reference>.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
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
