//! Packet marks and connection labels.

use netlink::nf_tables::{
    CONNECTION_LABELS, CtKey, Expression, MetaKey, Operator, Register, Rule, SettableCtKey,
    connection_label,
};
use nftables_model::{compare, rule};

/// A rule that sets a label of the connection: `ct label set label`.
pub(super) fn label(label: usize) -> Rule {
    rule(vec![
        Expression::Load {
            value: connection_label(label).to_vec(),
            to: Register(0),
        },
        Expression::SetCt {
            key: SettableCtKey::Labels,
            from: Register(0),
        },
    ])
}

/// Matches packets of connections with a label.
pub(super) fn labelled(label: usize) -> Vec<Expression> {
    let bits = connection_label(label);
    vec![
        Expression::Ct {
            key: CtKey::Labels,
            direction: None,
            to: Register(0),
        },
        Expression::Bitwise {
            from: Register(0),
            to: Register(0),
            mask: bits.to_vec(),
            xor: vec![0; bits.len()],
        },
        compare(Operator::NotEqual, &[0; CONNECTION_LABELS / 8]),
    ]
}

/// Sets the packet's mark.
pub(super) fn set_mark(value: u32) -> [Expression; 2] {
    [
        Expression::Load {
            value: value.to_ne_bytes().to_vec(),
            to: Register(0),
        },
        Expression::SetMeta {
            key: MetaKey::Mark,
            from: Register(0),
        },
    ]
}
