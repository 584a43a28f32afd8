use super::*;
use crate::wire::Writer;

const OWN: u32 = 4711;
const OTHER: u32 = 815;
/// `NFT_MSG_NEWTABLE`.
const NEW_TABLE: u16 = SUBSYSTEM << 8;
/// `NFT_MSG_NEWSETELEM`.
const NEW_ELEMENT: u16 = SUBSYSTEM << 8 | 12;

fn collector() -> NotificationCollector {
    NotificationCollector::new(
        Watched::Tables(vec!["signpost"]),
        vec![Arc::new(AtomicU32::new(OWN))],
    )
}

fn message(port: u32, kind: u16, family: u8, fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    let open = writer.begin(kind, 0, 0, family, 0);
    fill(&mut writer);
    writer.end(open);
    let mut bytes = writer.into_bytes();
    bytes[12..16].copy_from_slice(&port.to_ne_bytes());
    bytes
}

fn change(port: u32, kind: u16, family: Family, table: &str) -> Vec<u8> {
    message(port, kind, family.number(), |writer| {
        writer.string(TABLE, table);
    })
}

fn end(port: u32, generation: u32) -> Vec<u8> {
    message(port, NEW_GENERATION, 0, |writer| {
        writer.u32(GENERATION, generation);
        writer.u32(PROCESS, 99);
        writer.string(PROGRAM, "nft");
    })
}

fn by_nft(touched: impl Into<BTreeSet<Family>>, generation: u32) -> Notification {
    let touched = touched.into();
    Notification::Transaction(ForeignTransaction {
        near: touched.clone(),
        touched,
        keeps_hooks: false,
        generation,
        process: Some(Process {
            id: 99,
            name: "nft".into(),
        }),
    })
}

#[test]
fn a_transaction_of_others_is_distinguished_from_signposts() {
    let mut collector = collector();
    let own = [
        change(OWN, NEW_ELEMENT, Family::Ipv4, "signpost"),
        end(OWN, 7),
    ];
    let foreign = [
        change(OTHER, DELETE_CHAIN, Family::Ipv4, "signpost"),
        end(OTHER, 8),
    ];
    assert_eq!(collector.take(&own.concat()), []);
    assert_eq!(
        collector.take(&foreign.concat()),
        [by_nft([Family::Ipv4], 8)]
    );
}

#[test]
fn a_transaction_over_several_datagrams_is_one() {
    let mut collector = collector();
    for family in FAMILIES {
        let deleted = change(OTHER, DELETE_CHAIN, family, "signpost");
        assert_eq!(collector.take(&deleted), []);
    }
    assert_eq!(collector.take(&end(OTHER, 8)), [by_nft(FAMILIES, 8)]);
    assert_eq!(collector.take(&end(OTHER, 9)), [by_nft([], 9)]);
}

#[test]
fn other_tables_and_families_are_not_signposts() {
    let mut collector = collector();
    let inet = message(OTHER, DELETE_CHAIN, 1, |writer| {
        writer.string(TABLE, "signpost");
    });
    let kube_proxy = change(OTHER, DELETE_CHAIN, Family::Ipv4, "kube-proxy");
    let datagram = [inet, kube_proxy, end(OTHER, 8)].concat();
    assert_eq!(collector.take(&datagram), [by_nft([], 8)]);
}

/// Failure story T330.
#[test]
fn t330_a_transaction_that_keeps_hooks_is_known_by_its_tables_alone() {
    let mut collector = collector();
    let mut keeps_hooks = |tables: &[&str]| {
        let changes = tables.iter().flat_map(|table| {
            [NEW_TABLE, NEW_CHAIN, NEW_RULE, DELETE_TABLE]
                .map(|kind| change(OTHER, kind, Family::Ipv4, table))
        });
        let datagrams: Vec<Vec<u8>> = changes.chain([end(OTHER, 8)]).collect();
        let heard = collector.take(&datagrams.concat());
        let [Notification::Transaction(transaction)] = &heard[..] else {
            panic!("one transaction is heard, not {heard:?}");
        };
        transaction.keeps_hooks
    };
    let (before, after) = ("signpost-hooks-1", "signpost-hooks-2");
    assert!(keeps_hooks(&[before]));
    assert!(keeps_hooks(&[before, after]));
    assert!(!keeps_hooks(&[]));
    assert!(!keeps_hooks(&["kube-proxy", after]));
    assert!(!keeps_hooks(&[after, "kube-proxy"]));
    assert!(keeps_hooks(&[after]), "each transaction counts for itself");
    collector.illegible();
    let hooks = change(OTHER, NEW_TABLE, Family::Ipv4, after);
    let heard = collector.take(&[hooks, end(OTHER, 9)].concat());
    assert_eq!(heard, [by_nft(FAMILIES, 9)]);
}

#[test]
fn what_was_lost_may_have_been_about_signposts_tables() {
    let mut collector = collector();
    collector.overrun();
    // Queued before the loss, and complete.
    assert_eq!(collector.take(&end(OTHER, 8)), [by_nft([], 8)]);
    assert_eq!(collector.quiet(), Some(Notification::Missed));
    assert_eq!(collector.quiet(), None);
    // Its first notifications may be among the lost ones.
    assert_eq!(collector.take(&end(OTHER, 10)), [by_nft(FAMILIES, 10)]);
    assert_eq!(collector.take(&end(OTHER, 11)), [by_nft([], 11)]);
}

#[test]
fn a_datagram_that_cannot_be_read_may_have_been_about_signposts_tables() {
    let mut collector = collector();
    collector.illegible();
    assert_eq!(collector.take(&end(OTHER, 8)), [by_nft(FAMILIES, 8)]);
}

proptest::proptest! {
    #[test]
    fn whatever_is_received_does_no_harm(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400),
    ) {
        collector().take(&bytes);
    }
}

#[test]
fn in_shared_tables_only_what_may_be_signposts_counts() {
    let watched = Watched::Chains {
        tables: &["nat", "filter"],
        prefix: "SIGNPOST-",
    };
    let mut collector = NotificationCollector::new(watched, vec![Arc::new(AtomicU32::new(OWN))]);
    let touched =
        |kind, table: &str, attribute, chain: &str, collector: &mut NotificationCollector| {
            let change = message(OTHER, kind, Family::Ipv4.number(), |writer| {
                writer.string(TABLE, table);
                writer.string(attribute, chain);
            });
            let heard = collector.take(&[change, end(OTHER, 8)].concat());
            let [Notification::Transaction(transaction)] = &heard[..] else {
                panic!("one transaction is heard, not {heard:?}");
            };
            let of = |families: &BTreeSet<Family>| *families == BTreeSet::from([Family::Ipv4]);
            (of(&transaction.touched), of(&transaction.near))
        };
    for (kind, table, attribute, chain, counts) in [
        (NEW_RULE, "nat", CHAIN_OF_RULE, "SIGNPOST-SERVICES", true),
        (DELETE_RULE, "filter", CHAIN_OF_RULE, "SIGNPOST-INPUT", true),
        (DELETE_RULE, "nat", CHAIN_OF_RULE, "PREROUTING", true),
        (NEW_RULE, "nat", CHAIN_OF_RULE, "PREROUTING", false),
        (DELETE_RULE, "nat", CHAIN_OF_RULE, "CNI-HOSTPORT", false),
        (DELETE_CHAIN, "nat", CHAIN_NAME, "SIGNPOST-SERVICES", true),
        (DELETE_CHAIN, "nat", CHAIN_NAME, "CNI-HOSTPORT", false),
        (DELETE_RULE, "mangle", CHAIN_OF_RULE, "PREROUTING", false),
        (DELETE_TABLE, "filter", CHAIN_NAME, "", true),
        (NEW_TABLE, "filter", CHAIN_NAME, "", false),
    ] {
        let found = touched(kind, table, attribute, chain, &mut collector);
        // A renamed chain or a table set dormant may concern any of Signpost's objects.
        let near = table != "mangle";
        assert_eq!(found, (counts, near), "{kind:#x} {table} {chain}");
    }
}
