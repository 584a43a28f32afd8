//! Parses a legacy table as the kernel stores it: consecutive entries, with a chain beginning
//! wherever a rule jumps to.
//!
//! ```text
//! [rule]... [policy]   [rule]... [policy]   [ERROR name] [rule]... [RETURN]   ...   [ERROR]
//!  a hook's chain       the next hook's      a named chain                           the end
//! ```
//!
//! Nothing is copied: entries of other programs are referred to by their offsets.

use std::ops::Range;

use thiserror::Error;

use super::kernel::Info;
use super::layout::{
    ALIGNMENT, ERROR, EXTENSION, EXTENSION_NAME, EXTENSION_REVISION, Layout, STANDARD_TARGET,
    read_i32, read_u16, until_nul,
};
use crate::Family;

/// A parsed table.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    pub(super) layout: &'static Layout,
    pub(super) bytes: &'a [u8],
    /// The offset of each entry, and the end of the last.
    offsets: Vec<u32>,
    /// The chains, in table order.
    pub(crate) chains: Vec<Chain<'a>>,
    /// The entries that lead to another entry, in order.
    jumps: Vec<Jump>,
}

/// A chain.
#[derive(Debug, Clone)]
pub(crate) struct Chain<'a> {
    pub(crate) kind: Kind<'a>,
    /// The numbers of its entries, without the one that holds its name and the last one, which
    /// decides about packets that reach the end of the chain.
    pub(crate) rules: Range<usize>,
}

/// How packets enter a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// At the hook with this number.
    Hook(usize),
    /// By rules of other chains, which refer to it by this name.
    Named(&'a [u8]),
}

/// An entry whose verdict is a jump to another entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jump {
    pub(super) entry: usize,
    pub(super) to: JumpTarget,
}

/// The target of a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JumpTarget {
    /// The next entry: the entry has no target and only counts.
    Next,
    /// The chain at this index of [`Table::chains`].
    Chain(usize),
}

/// Why these bytes are not a valid iptables table.
#[derive(Debug, Error)]
pub(crate) enum Unreadable {
    #[error("the entry at byte {0} is cut off or has impossible offsets")]
    Entry(usize),
    #[error("the chain before byte {0} has no end")]
    Open(usize),
    #[error("no chain begins at hook {0}, or the chain ends at the wrong place")]
    Hook(usize),
    #[error("the entry at byte {0} belongs to no chain")]
    Stray(usize),
    #[error("the entry at byte {0} jumps to a place where no chain begins")]
    Astray(usize),
    #[error("the number of entries differs from the kernel's")]
    Size,
    #[error("the entry that ends a table is missing")]
    End,
}

/// A chain whose end has not been reached yet.
struct Open<'a> {
    kind: Kind<'a>,
    first: usize,
}

// === impl Table ===

impl<'a> Table<'a> {
    /// Parses the entries that the kernel describes by `info`.
    pub(crate) fn parse(
        family: Family,
        info: &Info,
        bytes: &'a [u8],
    ) -> Result<Table<'a>, Unreadable> {
        let layout = Layout::of(family);
        // Reserve no more than the bytes can hold, regardless of what `info` states.
        let most = bytes.len() / (layout.length + EXTENSION);
        let mut offsets = Vec::with_capacity(most.min(info.entries as usize) + 1);
        let mut table = Table {
            layout,
            bytes,
            offsets: Vec::new(),
            chains: Vec::new(),
            jumps: Vec::new(),
        };
        let mut verdicts: Vec<(usize, usize)> = Vec::new();
        let mut open: Option<Open<'a>> = None;
        let mut at = 0;
        let mut ended = false;
        while at < bytes.len() {
            let number = offsets.len();
            let offset = u32::try_from(at).map_err(|_| Unreadable::Entry(at))?;
            offsets.push(offset);
            let entry = layout.entry(bytes, at).ok_or(Unreadable::Entry(at))?;
            let end = at + entry.length;
            let begun = match entry.target_name() {
                ERROR if end == bytes.len() => {
                    table.close(open.take(), number, at)?;
                    ended = true;
                    None
                }
                ERROR => Some((Kind::Named(until_nul(entry.payload())), number + 1)),
                _ => info
                    .hooks()
                    .find(|hook| info.starts[*hook] == offset)
                    .map(|hook| (Kind::Hook(hook), number)),
            };
            if let Some((kind, first)) = begun {
                table.close(open.replace(Open { kind, first }), number, at)?;
            }
            if open.is_none() && !ended {
                return Err(Unreadable::Stray(at));
            }
            if let Some(verdict) = entry.verdict().and_then(|verdict| verdict.try_into().ok()) {
                verdicts.push((number, verdict));
            }
            at = end;
        }
        if !ended {
            return Err(Unreadable::End);
        }
        offsets.push(u32::try_from(at).map_err(|_| Unreadable::Entry(at))?);
        table.offsets = offsets;
        if table.end() + 1 != info.entries as usize || at != info.size as usize {
            return Err(Unreadable::Size);
        }
        table.check_hooks(info)?;
        table.jumps = verdicts
            .into_iter()
            .map(|(entry, verdict)| table.find_target(entry, verdict))
            .collect::<Result<_, _>>()?;
        Ok(table)
    }

    /// Ends the open chain before entry `next`, which begins at byte `at`.
    fn close(&mut self, open: Option<Open<'a>>, next: usize, at: usize) -> Result<(), Unreadable> {
        let Some(Open { kind, first }) = open else {
            return Ok(());
        };
        let last = next
            .checked_sub(1)
            .filter(|last| *last >= first)
            .ok_or(Unreadable::Open(at))?;
        self.chains.push(Chain {
            kind,
            rules: first..last,
        });
        Ok(())
    }

    fn check_hooks(&self, info: &Info) -> Result<(), Unreadable> {
        for hook in info.hooks() {
            let chain = self.chains.iter().find(|c| c.kind == Kind::Hook(hook));
            let policy = chain.and_then(|chain| self.offsets.get(chain.rules.end));
            if policy != Some(&info.policies[hook]) {
                return Err(Unreadable::Hook(hook));
            }
        }
        Ok(())
    }

    fn find_target(&self, entry: usize, verdict: usize) -> Result<Jump, Unreadable> {
        if verdict == self.offset(entry + 1) {
            let to = JumpTarget::Next;
            return Ok(Jump { entry, to });
        }
        let start = |chain: &Chain<'_>| self.offset(chain.rules.start);
        let found = self.chains.binary_search_by_key(&verdict, start).ok();
        let found = found.filter(|chain| matches!(self.chains[*chain].kind, Kind::Named(_)));
        let to = JumpTarget::Chain(found.ok_or_else(|| Unreadable::Astray(self.offset(entry)))?);
        Ok(Jump { entry, to })
    }

    /// The offset of entry `number`.
    pub(super) fn offset(&self, number: usize) -> usize {
        self.offsets
            .get(number)
            .map_or(self.bytes.len(), |offset| *offset as usize)
    }

    /// The bytes of these entries.
    pub(super) fn entries(&self, numbers: Range<usize>) -> &'a [u8] {
        let range = self.offset(numbers.start)..self.offset(numbers.end);
        self.bytes.get(range).unwrap_or_default()
    }

    /// The jumps among these entries.
    pub(super) fn jumps(&self, numbers: Range<usize>) -> &[Jump] {
        let first = self.jumps.partition_point(|j| j.entry < numbers.start);
        let rest = &self.jumps[first..];
        &rest[..rest.partition_point(|jump| jump.entry < numbers.end)]
    }

    /// The target of entry `number`, if it is a jump.
    pub(super) fn leads_to(&self, number: usize) -> Option<JumpTarget> {
        self.jumps(number..number + 1).first().map(|jump| jump.to)
    }

    /// Whether entry `number` jumps to a chain whose name begins with `prefix`.
    pub(crate) fn leads_to_prefix(&self, number: usize, prefix: &str) -> bool {
        match self.leads_to(number) {
            Some(JumpTarget::Chain(chain)) => self.chains[chain].begins_with(prefix),
            Some(JumpTarget::Next) | None => false,
        }
    }

    /// The number of the entry that ends the table.
    pub(super) fn end(&self) -> usize {
        self.offsets.len().saturating_sub(2)
    }
}

// === impl Chain ===

impl<'a> Chain<'a> {
    /// The name, unless it is a built-in chain.
    pub(crate) fn name(&self) -> Option<&'a [u8]> {
        match self.kind {
            Kind::Named(name) => Some(name),
            Kind::Hook(_) => None,
        }
    }

    /// Whether the chain has a name and it begins with `prefix`.
    pub(crate) fn begins_with(&self, prefix: &str) -> bool {
        self.name()
            .is_some_and(|name| name.starts_with(prefix.as_bytes()))
    }
}

/// One entry: fields, matches, target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    /// The whole entry.
    pub(super) bytes: &'a [u8],
    /// The offset of its target.
    pub(super) target: usize,
    length: usize,
}

impl Layout {
    /// The entry at `at`, if the lengths that it states fit in `bytes`.
    pub(super) fn entry<'a>(&self, bytes: &'a [u8], at: usize) -> Option<Entry<'a>> {
        let rest = bytes.get(at..)?;
        let target = usize::from(read_u16(rest, self.target_offset)?);
        let length = usize::from(read_u16(rest, self.next_offset())?);
        let bytes = rest.get(..length)?;
        let size = usize::from(read_u16(bytes, target)?);
        let fits = target >= self.length
            && size >= EXTENSION
            && target + size == length
            && length.is_multiple_of(ALIGNMENT);
        fits.then_some(Entry {
            bytes,
            target,
            length,
        })
    }
}

// === impl Entry ===

impl<'a> Entry<'a> {
    /// The name of its target: empty for verdicts and jumps.
    pub(super) fn target_name(&self) -> &'a [u8] {
        let name = self.target + EXTENSION_NAME..self.target + EXTENSION_REVISION;
        until_nul(self.bytes.get(name).unwrap_or_default())
    }

    /// The payload of its target.
    pub(super) fn payload(&self) -> &'a [u8] {
        let start = self.target + EXTENSION;
        self.bytes.get(start..).unwrap_or_default()
    }

    /// A verdict below 0, or the offset of the entry to jump to.
    pub(super) fn verdict(&self) -> Option<i32> {
        let standard =
            self.target_name().is_empty() && self.length - self.target == STANDARD_TARGET;
        standard
            .then(|| read_i32(self.bytes, self.target + EXTENSION))
            .flatten()
    }
}
