//! The TCP connections of a process.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddrV4;

use anyhow::Result;

/// `TCP_ESTABLISHED` (include/net/tcp_states.h) as in the kernel's table.
const ESTABLISHED: &str = "01";

/// Returns the number of established TCP connections of a process to `server`.
pub fn connections_to(process: u32, server: SocketAddrV4) -> Result<usize> {
    // The kernel's table has the address as a number in native byte order and the port, both in
    // hexadecimal.
    let address = u32::from_ne_bytes(server.ip().octets());
    let peer = format!("{address:08X}:{:04X}", server.port());
    let mut own = BTreeSet::new();
    for file in fs::read_dir(format!("/proc/{process}/fd"))? {
        // A file that was closed meanwhile is not a connection.
        let Ok(target) = fs::read_link(file?.path()) else {
            continue;
        };
        let target = target.display().to_string();
        let inode = target
            .strip_prefix("socket:[")
            .map(|rest| rest.trim_end_matches(']'));
        own.extend(inode.map(str::to_owned));
    }
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp"))?;
    let connections = table.lines().filter(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        matches!(columns[..], [_, _, remote, state, _, _, _, _, _, inode, ..]
            if remote == peer && state == ESTABLISHED && own.contains(inode))
    });
    Ok(connections.count())
}
