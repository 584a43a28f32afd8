//! Legacy tables built by hand: changes to them, what stays, and damaged tables.

mod absence;
mod damage;
mod listing;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::Range;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::Index;

use super::blob::Unreadable;
use super::entry::Writer;
use super::kernel::Info;
use super::layout::Layout;
use super::replacement::{Obstacle, check_length};
use super::*;
use crate::generate;
use crate::{AddressMatch, InterfaceMatch, Match, Protocol, States, Target};

const SIGNPOST: &str = "SIGNPOST-";
const OTHERS: &str = "KUBE-";
/// The hooks of table nat, by number.
const NAT: [usize; 4] = [0, 1, 3, 4];
/// The endpoints of one Service.
const ENDPOINTS: u32 = 10_000;
/// Ten times the measured time, without optimization and on a busy machine.
const IN_NO_TIME: Duration = Duration::from_secs(5);
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// A table with its entries.
#[derive(Debug, Clone)]
pub(super) struct Made {
    family: Family,
    pub(super) info: Info,
    pub(super) entries: Vec<u8>,
}

impl Made {
    /// An empty table as the kernel creates it: policies and the last entry.
    fn empty(family: Family) -> Made {
        let mut info = Info::default();
        let mut writer = Writer {
            layout: Layout::of(family),
            family,
            bytes: Vec::new(),
        };
        for hook in NAT {
            let offset = u32::try_from(writer.bytes.len()).expect("few entries");
            info.hooks |= 1 << hook;
            (info.starts[hook], info.policies[hook]) = (offset, offset);
            writer.rule(&Rule::always(Target::Accept)).expect("fits");
        }
        writer.head("ERROR").expect("fits");
        info.entries = 5;
        info.size = u32::try_from(writer.bytes.len()).expect("few entries");
        Made {
            family,
            info,
            entries: writer.bytes,
        }
    }

    fn parse(&self) -> Result<Table<'_>, Unreadable> {
        Table::parse(self.family, &self.info, &self.entries)
    }

    fn change(
        &self,
        prefix: &str,
        changes: &[TableChange],
    ) -> Result<(Made, Vec<Option<u32>>), Obstacle> {
        let table = self.parse().expect("it can be read");
        let plan = Plan::compile(&table, &self.info, changes)?;
        let made = compile_replacement(&table, &self.info, &plan, self.family, prefix)?;
        let (info, entries) = (made.info, made.entries().to_vec());
        let table_summary = TableSummary::of(&table, prefix).after(&table, &plan, prefix);
        assert_eq!(info.size as usize, entries.len());
        let family = self.family;
        let before = made.before;
        let made = Made {
            family,
            info,
            entries,
        };
        let found = TableSummary::of(&made.parse().expect("it can be read"), prefix);
        assert_eq!(found, table_summary, "what is left is what will be found");
        Ok((made, before))
    }

    fn held(&self, prefix: &str) -> OwnRules {
        held(&self.parse().expect("it can be read"), self.family, prefix)
    }

    /// Every entry that does not belong to `prefix`, by chain, with the name of its target chain
    /// instead of the jump offset.
    fn without(&self, prefix: &str) -> Vec<(String, Vec<u8>, Option<String>)> {
        let table = self.parse().expect("it can be read");
        let name = |place: usize| format!("{:?}", table.chains[place].kind);
        let mut all = Vec::new();
        for (place, chain) in table.chains.iter().enumerate() {
            if chain.begins_with(prefix) {
                continue;
            }
            for number in chain.rules.start..=chain.rules.end {
                if table.leads_to_prefix(number, prefix) {
                    continue;
                }
                let mut bytes = table.entries(number..number + 1).to_vec();
                let to = table.leads_to(number).map(|to| {
                    let end = bytes.len() - 8;
                    bytes[end..].fill(0);
                    match to {
                        JumpTarget::Next => "the next".to_owned(),
                        JumpTarget::Chain(chain) => name(chain),
                    }
                });
                all.push((name(place), bytes, to));
            }
        }
        all
    }
}

fn change(
    chains: &[(&str, &[Rule])],
    entries: &[(BuiltIn, &[Rule])],
    removed: &[&str],
) -> TableChange {
    TableChange {
        table: TableName::Nat,
        chains: chains
            .iter()
            .map(|(name, rules)| ((*name).into(), rules.to_vec().into()))
            .collect(),
        entries: entries
            .iter()
            .map(|(chain, rules)| (*chain, rules.to_vec()))
            .collect(),
        removed: removed.iter().map(|name| (*name).into()).collect(),
    }
}

fn jump(chain: &str) -> Rule {
    Rule::always(Target::Jump(chain.into()))
}

/// Rules of other programs, among them one without a target, one with an unknown target, and one
/// that leads to a chain that is sorted behind Signpost's.
pub(super) fn with_others(family: Family) -> Made {
    let unknown = Rule {
        matches: vec![Match::Mark { value: 1, mask: 1 }],
        ..Rule::always(Target::Mark { value: 7, mask: 7 })
    };
    let chains: [(&str, &[Rule]); 3] = [
        ("KUBE-A", &[jump("ZONE"), unknown.clone()]),
        ("KUBE-B", &[]),
        ("ZONE", &[Rule::always(Target::Drop)]),
    ];
    let entries: [(BuiltIn, &[Rule]); 1] = [(BuiltIn::Prerouting, &[jump("KUBE-A")])];
    let (made, _) = Made::empty(family)
        .change(OTHERS, &[change(&chains, &entries, &[])])
        .expect("nothing is in the way");
    let (mut made, _) = made
        .change(
            "UNUSED",
            &[change(
                &[],
                &[(BuiltIn::Prerouting, &[Rule::always(Target::Drop), unknown])],
                &[],
            )],
        )
        .expect("nothing is in the way");
    // Turn the first rule into one that only counts, and the second into one of an unknown module.
    let layout = Layout::of(family);
    let second = made.parse().expect("it can be read").offset(1);
    let verdict = i32::try_from(second).expect("few entries").to_ne_bytes();
    made.entries[second - 8..second - 4].copy_from_slice(&verdict);
    let target = layout
        .entry(&made.entries, second)
        .expect("it is an entry")
        .target;
    made.entries[second + target + 2..second + target + 6].copy_from_slice(b"TALK");
    made
}

#[test]
fn what_is_written_is_read() {
    for family in FAMILIES {
        let range = match family {
            Family::Ipv4 => "10.1.0.0/16",
            Family::Ipv6 => "fd00:1::/32",
        };
        let range = range.parse().expect("a range");
        let full = Rule {
            source: Some(AddressMatch::outside(range)),
            destination: Some(AddressMatch::within(range)),
            input: Some(InterfaceMatch {
                name: "veth".into(),
                is_prefix: true,
                inverted: true,
            }),
            protocol: Some(Protocol::Udp),
            matches: vec![
                Match::DestinationPorts {
                    first: 30000,
                    last: 30010,
                },
                Match::ConnectionState(States::NEW),
            ],
            target: Target::Goto("SIGNPOST-B".into()),
            comment: Some("shop/web:http".into()),
        };
        let exact = Rule {
            input: Some(InterfaceMatch {
                name: "eth0".into(),
                is_prefix: false,
                inverted: false,
            }),
            ..Rule::always(Target::Masquerade)
        };
        let a = [full, exact, Rule::always(Target::Accept)];
        let b = [Rule::always(Target::Drop), Rule::always(Target::Return)];
        let step = change(
            &[("SIGNPOST-B", &b), ("SIGNPOST-A", &a)],
            &[(BuiltIn::Output, &[jump("SIGNPOST-A")])],
            &[],
        );
        let (made, before) = with_others(family)
            .change(SIGNPOST, &[step])
            .expect("nothing is in the way");
        let held = made.held(SIGNPOST);
        let some = |rules: &[Rule]| rules.iter().cloned().map(Some).collect::<Vec<_>>();
        assert_eq!(held.chains.len(), 2);
        assert_eq!(held.chains["SIGNPOST-A"], some(&a));
        assert_eq!(held.chains["SIGNPOST-B"], some(&b));
        assert_eq!(
            held.entries,
            BTreeMap::from([(BuiltIn::Output, some(&[jump("SIGNPOST-A")]))])
        );
        assert_eq!(before.len(), made.info.entries as usize);
    }
}

#[test]
fn what_others_have_stays_byte_for_byte() {
    for family in FAMILIES {
        let others = with_others(family);
        let expected = others.without(SIGNPOST);
        let add = change(
            &[("SIGNPOST-A", &[jump("KUBE-B")]), ("SIGNPOST-B", &[])],
            &[
                (BuiltIn::Prerouting, &[jump("SIGNPOST-A")]),
                (BuiltIn::Postrouting, &[jump("SIGNPOST-B")]),
            ],
            &[],
        );
        let (with, _) = others
            .change(SIGNPOST, &[add])
            .expect("nothing is in the way");
        assert_eq!(with.without(SIGNPOST), expected);
        let remove = change(
            &[],
            &[(BuiltIn::Prerouting, &[]), (BuiltIn::Postrouting, &[])],
            &["SIGNPOST-A", "SIGNPOST-B"],
        );
        let (without, before) = with
            .change(SIGNPOST, &[remove])
            .expect("nothing is in the way");
        assert_eq!(without.entries, others.entries);
        assert_eq!(without.info, others.info);
        assert!(
            before.iter().all(Option::is_some),
            "a rule of others loses its counters"
        );
    }
}

#[test]
fn a_rule_that_its_chain_had_before_keeps_its_counters() {
    let made = Made::empty(Family::Ipv4);
    let rules = |marks: &[u32]| {
        let mark = |value| Rule::always(Target::Mark { value, mask: 0xff });
        marks.iter().map(|value| mark(*value)).collect::<Vec<_>>()
    };
    let step = |marks: &[u32]| change(&[("SIGNPOST-A", &rules(marks))], &[], &[]);
    let (made, before) = made.change(SIGNPOST, &[step(&[1, 2, 3])]).expect("it fits");
    // Four policies; the head of Signpost's chain, its three rules and its end; the end of the
    // table.
    assert_eq!(before[4..9], [None; 5]);
    let (_, before) = made
        .change(SIGNPOST, &[step(&[2, 9, 3, 1])])
        .expect("it fits");
    assert_eq!(before[4..9], [Some(4), Some(6), None, Some(7), Some(5)]);
}

/// Regression test: searching all old rules of a chain for each new rule took 16 seconds for these,
/// with the lock held. Removing one endpoint changes the probability of every other.
#[test]
fn a_chain_of_ten_thousand_endpoints_loses_one_in_no_time() {
    let rules = |endpoints: Range<u32>| {
        let number = endpoints.len();
        let rules = endpoints.enumerate().map(|(place, endpoint)| Rule {
            matches: vec![Match::Random {
                probability: Match::CERTAIN / u32::try_from(number - place).expect("few"),
            }],
            ..Rule::always(Target::DestinationNat {
                address: Ipv4Addr::from_bits(0x0a00_0000 + endpoint).into(),
                port: 8080,
            })
        });
        rules.collect::<Vec<_>>()
    };
    let step = |rules: &[Rule]| change(&[("SIGNPOST-A", rules)], &[], &[]);
    let more = rules(0..ENDPOINTS);
    let made = Made::empty(Family::Ipv4);
    let (made, _) = made.change(SIGNPOST, &[step(&more)]).expect("it fits");
    let start = Instant::now();
    // One half of the rules is unchanged, the other half differs.
    let half = ENDPOINTS as usize / 2;
    let fewer = [&more[half..], &rules(0..ENDPOINTS - 1)].concat();
    let (_, before) = made.change(SIGNPOST, &[step(&fewer)]).expect("it fits");
    assert!(start.elapsed() < IN_NO_TIME, "{:?}", start.elapsed());
    assert_eq!(before[5], Some(5 + u32::try_from(half).expect("few")));
    let kept = before[5..].iter().take_while(|before| before.is_some());
    assert_eq!(kept.count(), half);
}

#[test]
fn a_table_is_refused_that_the_kernel_has_never_memory_for() {
    const MIB: usize = 1024 * 1024;
    assert_eq!(check_length(511 * MIB).ok(), Some(511 * 1024 * 1024));
    let error = check_length(512 * MIB).expect_err("it is too long");
    assert!(!error.is_about_content());
    assert_eq!(
        error.to_string(),
        "the table would need 536870912 bytes or more; the kernel's limit is 536870848"
    );
}

#[test]
fn a_change_that_the_table_was_not_made_for_names_the_chain() {
    let others = with_others(Family::Ipv4);
    let says = |step: TableChange| {
        let obstacle = others
            .change(SIGNPOST, &[step])
            .expect_err("it cannot be done");
        (obstacle.to_string(), obstacle.is_about_content())
    };
    for (step, expected) in [
        (
            change(&[("SIGNPOST-A", &[jump("SIGNPOST-B")])], &[], &[]),
            "a rule jumps to the chain SIGNPOST-B, which does not exist",
        ),
        (
            change(&[], &[], &["SIGNPOST-A"]),
            "the chain SIGNPOST-A to remove does not exist",
        ),
        (
            change(&[], &[], &["ZONE"]),
            "a rule of the chain KUBE-A jumps to the chain ZONE to remove",
        ),
    ] {
        assert_eq!(says(step), (expected.to_owned(), true));
    }
    let long = "SIGNPOST-01234567890123456789";
    for wrong in [
        change(&[], &[(BuiltIn::Forward, &[])], &[]),
        change(&[(long, &[])], &[], &[]),
    ] {
        let (_, is_about_content) = says(wrong);
        assert!(!is_about_content);
    }
}

#[test]
fn entries_that_are_there_stay_behind_what_others_put_before_them() {
    let enter = |chain: &str| change(&[(chain, &[])], &[(BuiltIn::Input, &[jump(chain)])], &[]);
    let made = Made::empty(Family::Ipv4);
    let (made, _) = made
        .change(SIGNPOST, &[enter("SIGNPOST-A")])
        .expect("it fits");
    let (made, _) = made.change(OTHERS, &[enter("KUBE-A")]).expect("it fits");
    let (again, before) = made
        .change(SIGNPOST, &[enter("SIGNPOST-A")])
        .expect("nothing is in the way");
    assert_eq!(again.entries, made.entries);
    assert_eq!(before.iter().filter(|entry| entry.is_none()).count(), 1);
    let (moved, _) = made
        .change(SIGNPOST, &[enter("SIGNPOST-B")])
        .expect("nothing is in the way");
    let table = moved.parse().expect("it can be read");
    let leads: Vec<bool> = (1..3).map(|n| table.leads_to_prefix(n, SIGNPOST)).collect();
    assert_eq!(leads, [true, false]);
}

#[test]
fn a_table_is_not_read_that_is_not_what_the_kernel_says() {
    let made = with_others(Family::Ipv4);
    let says = |change: fn(&mut Made)| {
        let mut made = made.clone();
        change(&mut made);
        made.parse().expect_err("it is damaged").to_string()
    };
    for (damage, expected) in [
        (
            (|made| made.info.entries += 1) as fn(&mut Made),
            "the number of entries differs from the kernel's",
        ),
        (
            |made| made.info.size += 8,
            "the number of entries differs from the kernel's",
        ),
        (
            |made| made.info.policies[0] += 8,
            "no chain begins at hook 0, or the chain ends at the wrong place",
        ),
        (
            |made| made.info.starts[0] += 8,
            "the entry at byte 0 belongs to no chain",
        ),
        (
            |made| made.entries.truncate(1000),
            "the entry at byte 960 is cut off or has impossible offsets",
        ),
        (
            |made| made.entries.truncate(960),
            "the entry that ends a table is missing",
        ),
        // The first rule jumps to the third entry, in the middle of a chain.
        (
            |made| made.entries[144..148].copy_from_slice(&352_i32.to_ne_bytes()),
            "the entry at byte 0 jumps to a place where no chain begins",
        ),
    ] {
        assert_eq!(says(damage), expected);
    }
}

fn families() -> impl Strategy<Value = Family> {
    prop::sample::select(FAMILIES.to_vec())
}

/// Drops matches of any address: they match everything and are not encoded.
fn without_what_asks_nothing(mut rule: Rule) -> Rule {
    for side in [&mut rule.source, &mut rule.destination] {
        side.take_if(|asked| asked.range.prefix_len() == 0 && !asked.inverted);
    }
    rule
}

fn rules() -> impl Strategy<Value = Vec<(u8, u32)>> {
    vec((0u8..5, any::<u32>()), 0..4)
}

/// Makes a rule from numbers; if it leads to a chain, that is one of `chains`.
fn rule((kind, value): (u8, u32), chains: &[Arc<str>]) -> Rule {
    let place = value as usize % chains.len().max(1);
    match (kind, chains.get(place)) {
        (0, Some(chain)) => jump(chain),
        (1, Some(chain)) => Rule {
            protocol: Some(Protocol::Tcp),
            comment: Some("shop/web".into()),
            ..Rule::always(Target::Goto(chain.clone()))
        },
        (2, _) => Rule::always(Target::Drop),
        (3, _) => Rule {
            matches: vec![Match::Mark { value, mask: value }],
            ..Rule::always(Target::Return)
        },
        _ => Rule::always(Target::Mark { value, mask: 0 }),
    }
}

proptest! {
    #[test]
    fn any_rule_comes_back((family, rules) in families().prop_flat_map(|family| {
        let rules = generate::rules(family).prop_map(without_what_asks_nothing);
        (Just(family), vec(rules, 0..5))
    })) {
        let mut chains: Vec<(&str, &[Rule])> = vec![("SIGNPOST-it", &rules)];
        let targets: Vec<Arc<str>> = rules.iter().filter_map(|rule| rule.leads_to().cloned()).collect();
        chains.extend(targets.iter().map(|name| (&**name, &[] as &[Rule])));
        let (made, _) = with_others(family).change(SIGNPOST, &[change(&chains, &[], &[])]).expect("it fits");
        let some: Vec<Option<Rule>> = rules.iter().cloned().map(Some).collect();
        prop_assert_eq!(&made.held(SIGNPOST).chains["SIGNPOST-it"], &some);
    }

    /// After any sequence of changes, the chains that are read are the requested ones, and entries
    /// of other programs have not moved.
    #[test]
    fn any_table_becomes_any_other(
        steps in vec(btree_map(0u8..12, rules(), 0..8), 1..5),
        tops in vec(rules(), 1..5),
        family in families(),
    ) {
        let mut made = with_others(family);
        let others = made.without(SIGNPOST);
        for (step, top) in steps.into_iter().zip(tops) {
            let names: Vec<Arc<str>> = step.keys().map(|n| format!("SIGNPOST-{n}").into()).collect();
            let chain = |rules: Vec<(u8, u32)>| -> Vec<Rule> {
                rules.into_iter().map(|numbers| rule(numbers, &names)).collect()
            };
            let chains: BTreeMap<Arc<str>, Vec<Rule>> = names.iter().cloned()
                .zip(step.into_values().map(chain)).collect();
            let top: Vec<Rule> = chain(top).into_iter().filter(|r| r.leads_to().is_some()).collect();
            let held = made.held(SIGNPOST);
            let desired = TableChange {
                table: TableName::Nat,
                chains: chains.iter().map(|(n, r)| (n.clone(), r.clone().into())).collect(),
                entries: vec![(BuiltIn::Input, top.clone())],
                removed: held.chains.keys().filter(|n| !chains.contains_key(*n)).cloned().collect(),
            };
            made = made.change(SIGNPOST, &[desired]).expect("nothing is in the way").0;
            let held = made.held(SIGNPOST);
            let some = |rules: Vec<Rule>| rules.into_iter().map(Some).collect::<Vec<_>>();
            let expected: BTreeMap<_, _> = chains.into_iter().map(|(n, r)| (n, some(r))).collect();
            prop_assert_eq!(held.chains, expected);
            prop_assert_eq!(held.entries.get(&BuiltIn::Input).cloned().unwrap_or_default(), some(top));
            prop_assert_eq!(made.without(SIGNPOST), others.clone());
        }
    }

    /// Whatever is in the kernel's memory, parsing succeeds or returns an error, and never panics.
    #[test]
    fn a_damaged_table_causes_no_panic(
        damage in vec((any::<Index>(), any::<u8>()), 0..6),
        words in vec((0usize..13, any::<u32>()), 0..2),
        cut in prop::option::of(any::<Index>()),
        family in families(),
    ) {
        let step = change(&[("SIGNPOST-A", &[jump("ZONE")])], &[(BuiltIn::Input, &[jump("SIGNPOST-A")])], &[]);
        let (mut made, _) = with_others(family).change(SIGNPOST, std::slice::from_ref(&step)).expect("it fits");
        for (at, value) in damage {
            let at = at.index(made.entries.len());
            made.entries[at] = value;
        }
        for (at, value) in words {
            let info = &mut made.info;
            let word = match at {
                0 => &mut info.hooks,
                1..6 => &mut info.starts[at - 1],
                6..11 => &mut info.policies[at - 6],
                11 => &mut info.entries,
                _ => &mut info.size,
            };
            *word = value;
        }
        if let Some(cut) = cut {
            let length = cut.index(made.entries.len());
            made.entries.truncate(length);
        }
        if let Ok(table) = made.parse() {
            let _ = held(&table, family, SIGNPOST);
            let changes = [step];
            if let Ok(plan) = Plan::compile(&table, &made.info, &changes) {
                let _ = compile_replacement(&table, &made.info, &plan, family, SIGNPOST);
                let _ = TableSummary::of(&table, SIGNPOST).after(&table, &plan, SIGNPOST);
            }
        }
    }
}
