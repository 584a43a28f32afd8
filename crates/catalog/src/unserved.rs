//! Services that exist but that Signpost does not serve.

use std::fmt;

/// Why a valid Service is not programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unserved {
    /// Its label assigns it to another proxy than the cluster's own.
    AnotherProxy,
    /// Its cluster IP is `None`: clients get the endpoints' own addresses from DNS.
    Headless,
    /// Its type is ExternalName: it exists only in DNS.
    ExternalName,
}

impl fmt::Display for Unserved {
    /// Writes a clause without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unserved::AnotherProxy => {
                "its label service.kubernetes.io/service-proxy-name assigns it to another proxy"
            }
            Unserved::Headless => {
                "it is headless: DNS gives its clients the addresses of its endpoints"
            }
            Unserved::ExternalName => {
                "it is an ExternalName: DNS resolves it, and no proxy forwards to it"
            }
        })
    }
}
