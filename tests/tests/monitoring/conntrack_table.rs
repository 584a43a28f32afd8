//! A conntrack table that is full.
//!
//! Only the first network namespace may lower the limit, so the table is filled.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Result, ensure};
use tempfile::NamedTempFile;
use tests::network::Namespace;

/// The largest limit that is reached in a test: `conntrack` takes 1.6 KB for each entry until all
/// are made, and the kernel 320 bytes.
const ENOUGH: u32 = 400_000;

/// Returns why no test fills the table, if none does.
pub(crate) fn too_large(namespace: &Namespace) -> Result<Option<String>> {
    let limit = limit(namespace)?;
    Ok((limit > ENOUGH).then(|| format!("a table of {limit} entries is too large to be filled")))
}

fn limit(namespace: &Namespace) -> Result<u32> {
    let file = "/proc/sys/net/netfilter/nf_conntrack_max";
    let limit = namespace.enter(|| fs::read_to_string(file))??;
    Ok(limit.trim().parse()?)
}

/// Fills the table with connections that have seen answers: the kernel removes others to make room.
pub(crate) fn fill(namespace: &Namespace) -> Result<()> {
    let mut commands = String::new();
    for number in 0..limit(namespace)? {
        let [third, fourth] = [number >> 8 & 255, number & 255];
        let port = 1000 + (number >> 16);
        writeln!(
            commands,
            "-I -s 198.18.{third}.{fourth} -d 203.0.113.1 -p udp --sport {port} --dport 9 -t 300 -u ASSURED"
        )?;
    }
    let file = NamedTempFile::new()?;
    fs::write(file.path(), commands)?;
    // It fails at the last ones, for which there is no room.
    let mut command = namespace.command("conntrack");
    drop(command.arg("-R").arg(file.path()).output()?);
    Ok(())
}

/// Removes all entries.
pub(crate) fn clear(namespace: &Namespace) -> Result<()> {
    let output = namespace.command("conntrack").arg("-F").output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}
