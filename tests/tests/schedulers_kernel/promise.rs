//! What each scheduler of IPVS promises.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dataplane::{Family, Protocol};
use netlink::ipvs::IpvsSocket;
use tests::deadline::patience;

use crate::{CLIENTS, build_ipvs, connect, packet, script, tell};

/// Far longer than an answer takes.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer is waited for that does not come.
const FAILS_WITHIN: Duration = Duration::from_millis(500);

/// What a scheduler does with four endpoints of the same weight.
pub(crate) struct Promise {
    pub(crate) scheduler: &'static str,
    /// How many endpoints eight clients reach, each with a connection that ends before the next one
    /// begins, or with a datagram.
    of_short: RangeInclusive<usize>,
    /// Which endpoint gets each of some connections of one client that stay open: the first is `A`,
    /// the next other one `B`. A `?` is the one with the fewest, a `*` any. A `!` is none.
    of_open: &'static str,
}

/// The most connections that one endpoint may have more than another where each connection goes to the
/// less busy one of two. In 200,000 simulated runs of 40 connections it was more in one.
const OF_TWOS: usize = 9;

/// The schedulers of net/netfilter/ipvs/Kconfig in Linux 6.1. Debian's kernel lacks `twos`. IPVS counts a connection of TCP as active while it is established, and one of UDP never:
///
/// - `rr` and `wrr` count nothing, `lc` and `wlc` closed connections too: all take turns.
/// - `sed` and `nq` count active connections: without any, the first endpoint is the least busy.
/// - `lblc` keeps an address of a Service at one endpoint until that has more active connections than
///   its weight, and another endpoint has less than half of its weight. Then it takes the least busy.
/// - `lblcr` keeps all that it has taken, and chooses the least busy of them.
/// - `dh` hashes the address of the Service, `sh` and `mh` hash that of the client.
/// - `twos` takes the less busy one of two chosen at random, and counts closed connections too.
/// - `fo` takes the heaviest endpoint; `ovf` fills one, to more than its weight, before the next, and
///   finds none once all are full.
pub(crate) const OF_IPVS: [Promise; 14] = [
    Promise::new("rr", 4..=4, "ABCD????????"),
    Promise::new("wrr", 4..=4, "ABCD????????"),
    Promise::new("lc", 4..=4, "ABCD????????"),
    Promise::new("wlc", 4..=4, "ABCD????????"),
    Promise::new("fo", 1..=1, "AAAAAAAAAAAA"),
    Promise::new("ovf", 1..=1, "AABBCCDD!"),
    Promise::new("lblc", 1..=1, "AABBCCDDDDDD"),
    Promise::new("lblcr", 1..=1, "AABBCCDD????"),
    Promise::new("dh", 1..=1, "AAAAAAAAAAAA"),
    Promise::new("sh", 2..=4, "AAAAAAAAAAAA"),
    Promise::new("mh", 2..=4, "AAAAAAAAAAAA"),
    Promise::new("sed", 1..=1, "ABCD????????"),
    Promise::new("nq", 1..=1, "ABCD????????"),
    Promise::new("twos", 2..=4, "****************************************"),
];

// === impl Promise ===

impl Promise {
    const fn new(
        scheduler: &'static str,
        of_short: RangeInclusive<usize>,
        of_open: &'static str,
    ) -> Promise {
        Promise {
            scheduler,
            of_short,
            of_open,
        }
    }

    /// Failure story T183: a Service may ask for any scheduler that the kernel has. It chooses among
    /// the endpoints as its documentation says, for both families and protocols.
    pub(crate) fn is_kept(&self) -> Result<()> {
        let scheduler = self.scheduler;
        let all = "configure mode-ipvs\napply a a-all b b-all";
        let mut kernel = build_ipvs(&script(all, scheduler)?)?;
        tell(&mut kernel, all, scheduler)?;
        let servers = kernel.node()?.enter(|| {
            let mut socket = IpvsSocket::open(backend_ipvs::MARKS)?;
            anyhow::Ok(socket.observe_virtual_servers()?)
        })??;
        let named: BTreeSet<&str> = servers.own.values().map(|s| s.scheduler.as_str()).collect();
        ensure!(named == [scheduler].into(), "{servers:?}");
        for family in Family::ALL {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let mut targets = BTreeSet::new();
                for client in CLIENTS.take(8) {
                    let packet = packet(family, protocol, client, 10);
                    targets.extend(connect(&mut kernel, &packet, 1)?);
                }
                let is_expected = self.of_short.contains(&targets.len());
                ensure!(is_expected, "{family} {protocol}: {targets:?}");
            }
            let destination = packet(family, Protocol::Tcp, 2, 10).destination;
            let destination = SocketAddr::new(destination, 80);
            let node = kernel.node()?;
            node.enter(|| self.expect_of_open(destination))?
                .with_context(|| family.to_string())?;
        }
        Ok(())
    }

    /// Opens connections, and closes them when each is where it is expected.
    fn expect_of_open(&self, destination: SocketAddr) -> Result<()> {
        let mut open = Vec::new();
        let mut counts: BTreeMap<char, usize> = ('A'..='D').map(|letter| (letter, 0)).collect();
        let mut letters: BTreeMap<SocketAddr, char> = BTreeMap::new();
        let mut seen = String::new();
        for expected in self.of_open.chars() {
            if expected == '!' {
                let refused = TcpStream::connect_timeout(&destination, patience(FAILS_WITHIN));
                ensure!(refused.is_err(), "{seen}, and another connection");
                seen.push(expected);
                continue;
            }
            let stream = TcpStream::connect_timeout(&destination, ANSWERS_WITHIN)?;
            stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
            let mut stream = BufReader::new(stream);
            // Only then is the connection established for IPVS.
            let mut answer = String::new();
            stream.read_line(&mut answer)?;
            let at = answer.split_whitespace().nth(1).context("an answer")?;
            let next = ('A'..='Z').nth(letters.len()).unwrap_or('Z');
            let letter = *letters.entry(at.parse()?).or_insert(next);
            seen.push(letter);
            let least = counts.values().min();
            let is_expected = match expected {
                '?' => counts.get(&letter) == least,
                '*' => true,
                _ => letter == expected,
            };
            ensure!(is_expected, "{seen}, and not {}", self.of_open);
            *counts.entry(letter).or_default() += 1;
            open.push(stream);
        }
        if self.of_open.contains('*') {
            let (least, most) = (counts.values().min(), counts.values().max());
            let spread = most.zip(least).map(|(most, least)| most - least);
            ensure!(spread.is_some_and(|spread| spread <= OF_TWOS), "{seen}");
        }
        Ok(())
    }
}
