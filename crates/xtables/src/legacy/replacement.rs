//! Compiles a table in which some of Signpost's chains have changed and everything else has stayed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use super::blob::{Chain, JumpTarget, Kind, Table};
use super::decode_entry;
use super::entry::{EncodeError, Writer};
use super::kernel::{Info, Replacement};
use super::layout::{EXTENSION, REPLACE, STANDARD_TARGET, TABLE_END, read_u16, write};
use super::previous_rules::PreviousRules;
use crate::{BuiltIn, Family, Rule, TableChange};

/// Why a change cannot be made to a table.
#[derive(Debug, Error)]
pub(super) enum Obstacle {
    #[error("the chain {0} to remove does not exist")]
    Absent(String),
    #[error("a rule jumps to the chain {0}, which does not exist")]
    Missing(String),
    #[error("a rule of the chain {by} jumps to the chain {chain} to remove")]
    Used { chain: String, by: String },
    #[error("the table has no chain {0}")]
    NoSuchHook(BuiltIn),
    #[error("the table would need {0} bytes or more; the kernel's limit is {TABLE_END}")]
    Length(usize),
    #[error("failed to write an entry")]
    EncodeError {
        #[source]
        source: EncodeError,
    },
}

/// The combined effect of some changes on a table.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    /// The named chains of the table, by name, each with its index in [`Table::chains`].
    old: Vec<(&'a [u8], usize)>,
    /// Chains to create or change; `None` for those to remove.
    pub(super) named: BTreeMap<&'a [u8], Option<&'a [Rule]>>,
    /// Signpost's new rules in the chain of each hook that changes.
    pub(super) hooks: BTreeMap<usize, &'a [Rule]>,
}

/// A named chain of the new table.
#[derive(Debug)]
struct Successor<'a> {
    name: &'a [u8],
    /// Its index in the old table.
    before: Option<usize>,
    /// Its new rules; `None` if they stay as they are.
    rules: Option<&'a [Rule]>,
    /// The offset of its first rule, once known.
    start: usize,
}

/// The new table while it is written.
struct Build<'a> {
    table: &'a Table<'a>,
    prefix: &'a str,
    writer: Writer,
    /// For each new entry, the number of the old entry that it corresponds to.
    before: Vec<Option<u32>>,
    /// The named chains, sorted by name.
    chains: Vec<Successor<'a>>,
    /// For each chain of the old table, its index in `chains`.
    places: Vec<Option<usize>>,
    /// Verdicts to fill in: the position of each, and the index in `chains` of its target.
    jumps: Vec<(usize, usize)>,
}

/// Applies `plan`, which was made for `table`, to it. Entries that stay are copied byte for byte,
/// except for their jump offsets. A rule of Signpost that its chain already had keeps its counters.
pub(super) fn compile_replacement(
    table: &Table<'_>,
    info: &Info,
    plan: &Plan<'_>,
    family: Family,
    prefix: &str,
) -> Result<Replacement, Obstacle> {
    let chains = plan.successors();
    let mut places = vec![None; table.chains.len()];
    for (place, chain) in chains.iter().enumerate() {
        if let Some(before) = chain.before {
            places[before] = Some(place);
        }
    }
    let mut bytes = Vec::with_capacity(REPLACE + table.bytes.len() + table.bytes.len() / 8);
    bytes.resize(REPLACE, 0);
    let mut build = Build {
        table,
        prefix,
        writer: Writer {
            layout: table.layout,
            family,
            bytes,
        },
        before: Vec::with_capacity(info.entries as usize),
        chains,
        places,
        jumps: Vec::new(),
    };
    let mut new = *info;
    for chain in &table.chains {
        if let Kind::Hook(hook) = chain.kind {
            new.starts[hook] = build.offset()?;
            let own = plan.hooks.get(&hook).copied();
            build.hook(chain.rules.clone(), own)?;
            new.policies[hook] = build.offset()?;
            build.copy(chain.rules.end..chain.rules.end + 1)?;
        }
    }
    for place in 0..build.chains.len() {
        build.chain(place)?;
    }
    build.copy(table.end()..table.end() + 1)?;
    build.fill_in_jumps()?;
    new.size = build.offset()?;
    new.entries = check_length(build.before.len())?;
    Ok(Replacement {
        info: new,
        argument: build.writer.bytes,
        before: build.before,
    })
}

fn named<'a>((place, chain): (usize, &Chain<'a>)) -> Option<(&'a [u8], usize)> {
    chain.name().map(|name| (name, place))
}

/// `NF_INET_*`.
pub(super) fn hook_number(chain: BuiltIn) -> usize {
    match chain {
        BuiltIn::Prerouting => 0,
        BuiltIn::Input => 1,
        BuiltIn::Forward => 2,
        BuiltIn::Output => 3,
        BuiltIn::Postrouting => 4,
    }
}

/// Returns `length` if a table may be that long. For a longer table the kernel reports that memory
/// is short, as it does for a real shortage, so the change would be retried forever.
pub(super) fn check_length(length: usize) -> Result<u32, Obstacle> {
    let fits = u32::try_from(length).ok();
    fits.filter(|length| *length < TABLE_END)
        .ok_or(Obstacle::Length(length))
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

// === impl Plan ===

impl<'a> Plan<'a> {
    /// Combines `changes`, in order, into a plan for `table`.
    pub(super) fn compile(
        table: &Table<'a>,
        info: &Info,
        changes: &'a [TableChange],
    ) -> Result<Plan<'a>, Obstacle> {
        let mut old: Vec<(&[u8], usize)> =
            table.chains.iter().enumerate().filter_map(named).collect();
        old.sort_unstable();
        let mut plan = Plan {
            old,
            named: BTreeMap::new(),
            hooks: BTreeMap::new(),
        };
        for change in changes {
            for (name, rules) in &change.chains {
                plan.named.insert(name.as_bytes(), Some(rules));
            }
            for (chain, rules) in &change.entries {
                let hook = hook_number(*chain);
                if !info.hooks().any(|number| number == hook) {
                    return Err(Obstacle::NoSuchHook(*chain));
                }
                plan.hooks.insert(hook, rules);
            }
            for name in &change.removed {
                let bytes = name.as_bytes();
                let is_there = plan.place_of(bytes).is_some();
                match plan.named.get(bytes) {
                    Some(None) => return Err(Obstacle::Absent(name.to_string())),
                    None if !is_there => return Err(Obstacle::Absent(name.to_string())),
                    Some(Some(_)) if !is_there => drop(plan.named.remove(bytes)),
                    _ => drop(plan.named.insert(bytes, None)),
                }
            }
        }
        Ok(plan)
    }

    /// The index of the table's chain with this name, if there is one.
    fn place_of(&self, name: &[u8]) -> Option<usize> {
        let found = self.old.binary_search_by_key(&name, |(name, _)| name);
        found.ok().map(|at| self.old[at].1)
    }

    /// The named chains of the new table, by name: iptables expects the chains of its tables to be
    /// sorted.
    fn successors(&self) -> Vec<Successor<'a>> {
        let stay = self.old.iter().filter_map(|(name, place)| {
            let rules = match self.named.get(name) {
                None => None,
                Some(Some(rules)) => Some(*rules),
                Some(None) => return None,
            };
            Some(Successor {
                name,
                before: Some(*place),
                rules,
                start: 0,
            })
        });
        let come = self.named.iter().filter_map(|(name, rules)| {
            let comes = self.place_of(name).is_none();
            comes.then_some(Successor {
                name,
                before: None,
                rules: Some((*rules)?),
                start: 0,
            })
        });
        let mut chains: Vec<Successor<'a>> = stay.chain(come).collect();
        chains.sort_by_key(|chain| chain.name);
        chains
    }
}

// === impl Build ===

impl Build<'_> {
    /// The offset of the next entry.
    fn offset(&self) -> Result<u32, Obstacle> {
        check_length(self.writer.bytes.len() - REPLACE)
    }

    /// Writes the rules of a hook: `own`, then those of other programs. If the hook already has
    /// exactly `own`, they stay where they are: a program that keeps its rules first and watches
    /// them would otherwise move them back.
    fn hook(&mut self, rules: Range<usize>, own: Option<&[Rule]>) -> Result<(), Obstacle> {
        let Some(own) = own else {
            return self.copy(rules);
        };
        let table = self.table;
        let is_own = |number: &usize| table.leads_to_prefix(*number, self.prefix);
        let before: Vec<usize> = rules.clone().filter(is_own).collect();
        let family = self.writer.family;
        let held = before
            .iter()
            .map(|number| decode_entry(table, *number, family));
        if held.eq(own.iter().cloned().map(Some)) {
            return self.copy(rules);
        }
        self.write(own, &before)?;
        let mut rest = rules.start;
        for number in before.into_iter().chain([rules.end]) {
            self.copy(rest..number)?;
            rest = number + 1;
        }
        Ok(())
    }

    fn chain(&mut self, place: usize) -> Result<(), Obstacle> {
        let Successor {
            name,
            before,
            rules,
            ..
        } = self.chains[place];
        let before = before.map(|before| self.table.chains[before].rules.clone());
        match &before {
            Some(old) => self.copy(old.start - 1..old.start)?,
            None => self.new_entry(|writer| writer.head(&text(name)))?,
        }
        self.chains[place].start = self.offset()? as usize;
        match (rules, before) {
            (None, Some(old)) => self.copy(old.start..old.end + 1),
            (rules, old) => {
                let old: Vec<usize> = old.into_iter().flatten().collect();
                self.write(rules.unwrap_or_default(), &old)?;
                self.new_entry(Writer::foot)
            }
        }
    }

    /// Copies these entries.
    fn copy(&mut self, numbers: Range<usize>) -> Result<(), Obstacle> {
        let table = self.table;
        let from = table.offset(numbers.start);
        let to = self.writer.bytes.len();
        let bytes = table.entries(numbers.clone());
        self.writer.bytes.extend_from_slice(bytes);
        let entries = numbers.clone().map(|number| u32::try_from(number).ok());
        self.before.extend(entries);
        for jump in table.jumps(numbers) {
            let entry = table.offset(jump.entry) - from;
            let target = read_u16(bytes, entry + table.layout.target_offset).unwrap_or_default();
            let verdict = to + entry + usize::from(target) + EXTENSION;
            match jump.to {
                JumpTarget::Next => {
                    let next = to - REPLACE + table.offset(jump.entry + 1) - from;
                    self.fill_in(verdict, next)?;
                }
                JumpTarget::Chain(chain) => {
                    let place = self.places[chain].ok_or_else(|| self.used(chain, jump.entry))?;
                    self.jumps.push((verdict, place));
                }
            }
        }
        Ok(())
    }

    /// Writes `rules`. Those that were among the entries `old` keep their counters.
    fn write(&mut self, rules: &[Rule], old: &[usize]) -> Result<(), Obstacle> {
        let mut old = PreviousRules::of(self.table, old, self.writer.family);
        for rule in rules {
            self.new_entry(|writer| writer.rule(rule))?;
            if let Some(last) = self.before.last_mut() {
                *last = old.take(rule);
            }
            if let Some(chain) = rule.leads_to() {
                let verdict = self.writer.bytes.len() - (STANDARD_TARGET - EXTENSION);
                self.jumps.push((verdict, self.place(chain)?));
            }
        }
        Ok(())
    }

    fn new_entry(
        &mut self,
        write: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> Result<(), Obstacle> {
        write(&mut self.writer).map_err(|source| Obstacle::EncodeError { source })?;
        self.before.push(None);
        Ok(())
    }

    fn place(&self, name: &Arc<str>) -> Result<usize, Obstacle> {
        self.chains
            .binary_search_by_key(&name.as_bytes(), |chain| chain.name)
            .map_err(|_| Obstacle::Missing(name.to_string()))
    }

    fn used(&self, chain: usize, entry: usize) -> Obstacle {
        let name = |place: usize| match self.table.chains[place].kind {
            Kind::Named(name) => text(name),
            Kind::Hook(hook) => format!("of hook {hook}"),
        };
        let by = self.table.chains.partition_point(|c| c.rules.end < entry);
        Obstacle::Used {
            chain: name(chain),
            by: name(by),
        }
    }

    fn fill_in_jumps(&mut self) -> Result<(), Obstacle> {
        for (verdict, chain) in std::mem::take(&mut self.jumps) {
            self.fill_in(verdict, self.chains[chain].start)?;
        }
        Ok(())
    }

    fn fill_in(&mut self, verdict: usize, offset: usize) -> Result<(), Obstacle> {
        // The kernel stores an offset as a C int, whose negative values are verdicts.
        let offset = i32::try_from(offset).map_err(|_| Obstacle::Length(offset))?;
        write(&mut self.writer.bytes, verdict, &offset.to_ne_bytes());
        Ok(())
    }
}

// === impl Obstacle ===

impl Obstacle {
    /// Whether the cause is the table's content rather than the change's.
    pub(super) fn is_about_content(&self) -> bool {
        match self {
            Obstacle::Absent(_) | Obstacle::Missing(_) | Obstacle::Used { .. } => true,
            Obstacle::NoSuchHook(_) | Obstacle::Length(_) | Obstacle::EncodeError { .. } => false,
        }
    }
}
