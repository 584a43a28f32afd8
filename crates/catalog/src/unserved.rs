//! Services that exist, but that Signpost does not serve.

use std::fmt;

/// Why a Service is not programmed although there is nothing wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unserved {
    /// Its label asks for another proxy than the cluster's own.
    AnotherProxy,
    /// Its cluster IP is `None`: clients get the endpoints' own addresses from DNS.
    Headless,
    /// Its type is ExternalName: it is a name in DNS and nothing else.
    ExternalName,
}

impl fmt::Display for Unserved {
    /// A sentence about it, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unserved::AnotherProxy => {
                "its label service.kubernetes.io/service-proxy-name asks for another proxy"
            }
            Unserved::Headless => {
                "it is headless: DNS gives its clients the addresses of its endpoints"
            }
            Unserved::ExternalName => "it is an ExternalName: only DNS knows it",
        })
    }
}
