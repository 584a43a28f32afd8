//! Finds free ports.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, bail};

/// The range of ports: below the ephemeral ports (from 32768 on), so that no client takes the port
/// of an API server that is down.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Returns a port of this address without a listener, a different one for each call.
pub(super) fn find_free(address: Ipv4Addr) -> Result<u16> {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    // Concurrent processes start their search at different ports.
    let start = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    let start = u16::try_from(start).context("the remainder is smaller than the divisor")?;
    for _ in 0..COUNT {
        let port = FIRST + (start + CALLS.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        match TcpListener::bind((address, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).context(format!("failed to listen on {address}")),
        }
    }
    bail!("all ports of {address} from {FIRST} on are taken")
}
