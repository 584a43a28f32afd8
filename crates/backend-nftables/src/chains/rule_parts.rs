//! The building blocks of rules.

use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{Expression, Register, Rule};
pub(super) use nftables_model::{
    Address, address_type_local, after, compare, counted, ct_dnat, ct_new, family_of, in_range,
    load_address, load_port, load_protocol_and_port, local_source, mark, rule,
    to_node_port_address, verdict,
};

use crate::layout::{Keyed, SetName};

/// Loads a frontend's key, starting at register 0. Returns the next free register.
pub(super) fn load_frontend(family: Family, keyed: Keyed) -> (Vec<Expression>, Register) {
    load_frontend_at(family, keyed, Register(0))
}

/// Loads a frontend's key, starting at `start`. Returns the next free register.
pub(super) fn load_frontend_at(
    family: Family,
    keyed: Keyed,
    start: Register,
) -> (Vec<Expression>, Register) {
    nftables_model::load_frontend(family, keyed.fields(), start)
}

/// For packets that match `when`, looks up the frontend in `set` and the resulting number in
/// `chains`.
pub(super) fn lookup_chain(
    family: Family,
    set: SetName,
    chains: SetName,
    mut when: Vec<Expression>,
) -> Rule {
    let (frontend, end) = load_frontend(family, keyed(set));
    when.extend(lookup_number(frontend, end, set, chains));
    Rule {
        expressions: when,
        comment: Some(number_comment(set)),
    }
}

/// Like [`nftables_model::lookup_number`].
pub(super) fn lookup_number(
    load_key: Vec<Expression>,
    end: Register,
    set: SetName,
    chains: SetName,
) -> impl Iterator<Item = Expression> {
    nftables_model::lookup_number(load_key, end, set.as_str(), chains.as_str())
}

/// Like [`nftables_model::number_comment`].
pub(super) fn number_comment(set: SetName) -> Arc<str> {
    nftables_model::number_comment(set.as_str())
}

/// How frontends in `set` are keyed.
fn keyed(set: SetName) -> Keyed {
    set.keyed().expect("it is a set of frontends")
}

pub(super) fn member(family: Family, which: Address, set: SetName) -> Vec<Expression> {
    nftables_model::member(family, which, set.as_str())
}
