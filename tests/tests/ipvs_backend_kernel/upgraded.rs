//! An agent of another version takes over, while clients connect.

use std::time::Duration;

use anyhow::{Result, ensure};
use backend_ipvs::TABLE;
use dataplane::Family;
use netlink::nf_tables::family_name;
use tests::network::{Connections, Kind, Namespace, Way};

use crate::stage::{Affinity, Replaced, SERVING, Stage};
use crate::untaken::ways;

/// The interval between two questions of one client.
const EVERY: Duration = Duration::from_millis(50);

/// Failure story T311: the version before wrote other rules, or a chain that cannot be changed in place.
pub(super) fn harms_no_connection() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING, Affinity::None)?;
    let ways = ways(&stage)?.into_iter();
    let ways: Vec<Way> = ways.map(|(_, way)| way).collect();
    for (left, expected) in [
        (
            "insert rule {family} {TABLE} dispatch counter",
            Replaced::Rules,
        ),
        (
            "delete chain {family} {TABLE} nat-prerouting; \
             add chain {family} {TABLE} nat-prerouting { type nat hook prerouting priority -100; }",
            Replaced::Table,
        ),
    ] {
        leave(stage.node()?, left)?;
        let clients = Connections::start(&ways, &[Kind::New, Kind::Kept], EVERY)?;
        let replaced = stage.restart()?;
        ensure!(replaced == expected, "{left}: {replaced:?}");
        clients.finish_unharmed()?;
    }
    Ok(())
}

fn leave(node: &Namespace, commands: &str) -> Result<()> {
    for family in Family::ALL {
        let commands = commands.replace("{family}", family_name(family));
        node.nft(&[&commands.replace("{TABLE}", TABLE)])?;
    }
    Ok(())
}
