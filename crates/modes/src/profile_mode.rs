//! The mode of a profile as a mode of the model, and the reverse. `dataplane` knows no API, and `crds` no model.

use crds::profile::mode::Mode as ProfileMode;
use dataplane::Mode;

/// Returns the mode that a profile selects.
pub fn from_profile(mode: ProfileMode) -> Mode {
    match mode {
        ProfileMode::Nftables => Mode::Nftables,
        ProfileMode::Iptables => Mode::Iptables,
        ProfileMode::Ipvs => Mode::Ipvs,
    }
}

/// Returns the mode as profiles and reports write it.
pub fn to_profile(mode: Mode) -> ProfileMode {
    match mode {
        Mode::Nftables => ProfileMode::Nftables,
        Mode::Iptables => ProfileMode::Iptables,
        Mode::Ipvs => ProfileMode::Ipvs,
    }
}
