//! Chains and rules of other programs, as far as Signpost needs them to coexist with or remove
//! them.

use std::sync::Arc;

use super::Family;
use super::decode::DecodeError;
use super::listed::listed;
use crate::wire::Message;

/// A chain of another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignChain {
    /// Its name, unique in its table.
    pub name: Arc<str>,
    /// How packets enter it, and for a base chain its policy.
    pub entry: Entry,
}

/// How packets enter a chain, and the policy of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// By a rule of another chain.
    Jump,
    /// At a hook; packets that reach its end are accepted.
    HookAccept,
    /// At a hook; packets that reach its end are dropped.
    HookDrop,
}

/// Whether packets traverse the chains of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// They do.
    Awake,
    /// They traverse none of them: `NFT_TABLE_F_DORMANT`.
    Dormant,
}

/// A rule of another program that leads to another chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jump {
    /// The chain that it is in.
    pub chain: Arc<str>,
    /// Its handle, unique in its table.
    pub handle: u64,
    /// The chain that it leads to.
    pub target: Arc<str>,
}

/// `NF_DROP`, in `NFTA_CHAIN_POLICY`.
const DROP: u32 = 0;

fn missing(object: &'static str, part: &'static str) -> DecodeError {
    DecodeError::Missing { object, part }
}

/// Decodes the flags of any table: `NFTA_TABLE_FLAGS`.
pub(crate) fn table_state(message: &Message<'_>) -> Result<TableState, DecodeError> {
    let flags = message.attributes().u32(2);
    match flags.ok_or(missing("table", "flags"))? & 1 {
        0 => Ok(TableState::Awake),
        _ => Ok(TableState::Dormant),
    }
}

/// Decodes any chain: `NFTA_CHAIN_NAME`, `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY`. `None` if its name
/// is not UTF-8: for the kernel names are bytes, and Signpost never asks for such a chain.
pub(crate) fn foreign_chain(message: &Message<'_>) -> Result<Option<ForeignChain>, DecodeError> {
    let attributes = message.attributes();
    attributes.get(3).ok_or(missing("chain", "name"))?;
    let Some(name) = attributes.string(3) else {
        return Ok(None);
    };
    let entry = match (attributes.get(4), attributes.u32(5)) {
        (None, _) => Entry::Jump,
        (Some(_), Some(DROP)) => Entry::HookDrop,
        (Some(_), _) => Entry::HookAccept,
    };
    Ok(Some(ForeignChain {
        name: name.into(),
        entry,
    }))
}

/// Decodes any rule: `None` unless one of its verdicts leads to a chain.
pub(crate) fn jump(message: &Message<'_>, family: Family) -> Result<Option<Jump>, DecodeError> {
    let Some(rule) = listed(message, family)? else {
        return Ok(None);
    };
    Ok(rule.leads_to().map(|target| Jump {
        chain: rule.chain().into(),
        handle: rule.handle(),
        target: target.into(),
    }))
}
