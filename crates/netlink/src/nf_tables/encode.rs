//! Encodes values as messages.

mod rules;

pub(crate) use self::rules::{RULE_COMMENT, checksums};
use self::rules::{add_rule, add_verdict};
pub(crate) use self::rules::{ct_number, meta_number, port_unreachable, settable_ct_number};
use super::{
    Bytes, Chain, ChainKind, DataType, ElementData, Extension, ExtensionKind, Family, HookPoint,
    Operation, Rule, Set, SetContent, SetWriter, Transaction, flowtable,
};
use crate::wire::{ACK, APPEND, CREATE, DUMP, REQUEST, Writer};

/// `NFNL_SUBSYS_NFTABLES`, in the upper half of a message's type.
pub(crate) const SUBSYSTEM: u16 = 10;
/// `NFNL_SUBSYS_NFT_COMPAT`.
const COMPAT_SUBSYSTEM: u16 = 11;
/// `NFNL_MSG_BATCH_BEGIN`.
const BATCH_BEGIN: u16 = 16;
/// `NFNL_MSG_BATCH_END`.
const BATCH_END: u16 = 17;
/// `NFNL_BATCH_GENID`.
const BATCH_GENERATION: u16 = 1;
/// `NFT_TABLE_F_OWNER`, a flag of `NFTA_TABLE_FLAGS`.
const TABLE_OWNER: u32 = 2;
/// The longest list of elements in one attribute. The length of an attribute is a 16-bit number.
const ELEMENT_LIST_LIMIT: usize = 60_000;

/// `enum nf_tables_msg_types`.
pub(crate) mod message {
    pub(crate) const NEW_TABLE: u16 = 0;
    pub(crate) const GET_TABLE: u16 = 1;
    pub(crate) const DELETE_TABLE: u16 = 2;
    pub(crate) const NEW_CHAIN: u16 = 3;
    pub(crate) const GET_CHAIN: u16 = 4;
    pub(crate) const DELETE_CHAIN: u16 = 5;
    pub(crate) const NEW_RULE: u16 = 6;
    pub(crate) const GET_RULE: u16 = 7;
    pub(crate) const DELETE_RULE: u16 = 8;
    pub(crate) const NEW_SET: u16 = 9;
    pub(crate) const GET_SET: u16 = 10;
    pub(crate) const DELETE_SET: u16 = 11;
    pub(crate) const NEW_ELEMENTS: u16 = 12;
    pub(crate) const GET_ELEMENTS: u16 = 13;
    pub(crate) const DELETE_ELEMENTS: u16 = 14;
    pub(crate) const GET_GENERATION: u16 = 16;
    pub(crate) const NEW_FLOWTABLE: u16 = 22;
    pub(crate) const GET_FLOWTABLE: u16 = 23;
    pub(crate) const DELETE_FLOWTABLE: u16 = 24;
}

/// An encoded transaction.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// The sequence number of its first message, which refusals of the batch as a whole refer to.
    pub(crate) first: u32,
    /// The sequence number of the last operation, the only one that the kernel acknowledges.
    pub(crate) last: u32,
}

struct Encoder<'a> {
    writer: Writer,
    transaction: &'a Transaction,
    sequence: u32,
    last: Option<crate::wire::Open>,
}

/// Encodes `transaction` with sequence numbers from `sequence` on. With a `generation`, the kernel
/// refuses it if the ruleset is at any other one.
pub(crate) fn encode(transaction: &Transaction, generation: Option<u32>, sequence: u32) -> Batch {
    let (mut encoder, last) = encode_operations(transaction, generation, sequence);
    encoder.frame(BATCH_END, None);
    Batch {
        bytes: encoder.writer.into_bytes(),
        first: sequence,
        last,
    }
}

/// Encodes `transaction` without the message that ends it: the kernel validates it, replies, and
/// reverts it (`nfnetlink_rcv_batch` in net/netfilter/nfnetlink.c).
pub(crate) fn encode_check(transaction: &Transaction, sequence: u32) -> Batch {
    let (encoder, last) = encode_operations(transaction, None, sequence);
    Batch {
        bytes: encoder.writer.into_bytes(),
        first: sequence,
        last,
    }
}

/// Encodes the beginning of the batch and all operations. Returns the sequence number of the last
/// operation.
fn encode_operations(
    transaction: &Transaction,
    generation: Option<u32>,
    sequence: u32,
) -> (Encoder<'_>, u32) {
    let mut encoder = Encoder {
        writer: Writer::default(),
        transaction,
        sequence,
        last: None,
    };
    encoder.frame(BATCH_BEGIN, generation);
    for operation in &transaction.operations {
        encoder.operation(operation);
    }
    // Only the last message requests an acknowledgement: one for BATCH_END exists only since 6.10.
    let last = encoder.sequence.wrapping_sub(1);
    if let Some(open) = encoder.last {
        encoder.writer.flag(open, ACK);
    }
    (encoder, last)
}

/// Encodes a request for all objects of one type. `table` limits it to one table, and `within` to
/// one set (for elements) or one chain (for rules).
pub(crate) fn encode_dump(
    kind: u16,
    family: Family,
    table: Option<&str>,
    within: Option<&str>,
    sequence: u32,
) -> Vec<u8> {
    let mut writer = Writer::default();
    let open = writer.begin(
        SUBSYSTEM << 8 | kind,
        REQUEST | DUMP,
        sequence,
        family.number(),
        0,
    );
    if let Some(table) = table {
        writer.string(1, table);
    }
    if let Some(within) = within {
        writer.string(2, within);
    }
    writer.end(open);
    writer.into_bytes()
}

/// Encodes a request for the generation number of the ruleset.
pub(crate) fn encode_generation(sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let open = writer.begin(
        SUBSYSTEM << 8 | message::GET_GENERATION,
        REQUEST,
        sequence,
        0,
        0,
    );
    writer.end(open);
    writer.into_bytes()
}

/// Encodes a request for one table.
pub(crate) fn encode_get_table(family: Family, table: &str, sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let kind = SUBSYSTEM << 8 | message::GET_TABLE;
    let open = writer.begin(kind, REQUEST, sequence, family.number(), 0);
    writer.string(1, table);
    writer.end(open);
    writer.into_bytes()
}

/// Encodes a request for the kernel's support of a match or target: `NFNL_MSG_COMPAT_GET` with
/// `NFTA_COMPAT_NAME`, `NFTA_COMPAT_REV` and `NFTA_COMPAT_TYPE`.
pub(crate) fn encode_get_extension(
    family: Family,
    extension: Extension<'_>,
    sequence: u32,
) -> Vec<u8> {
    let mut writer = Writer::default();
    let kind = COMPAT_SUBSYSTEM << 8;
    let open = writer.begin(kind, REQUEST, sequence, family.number(), 0);
    writer.string(1, extension.name);
    writer.u32(2, u32::from(extension.revision));
    writer.u32(
        3,
        match extension.kind {
            ExtensionKind::Match => 0,
            ExtensionKind::Target => 1,
        },
    );
    writer.end(open);
    writer.into_bytes()
}

/// Encodes a request for one chain.
pub(crate) fn encode_get_chain(family: Family, table: &str, chain: &str, sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let kind = SUBSYSTEM << 8 | message::GET_CHAIN;
    let open = writer.begin(kind, REQUEST, sequence, family.number(), 0);
    writer.string(1, table);
    writer.string(3, chain);
    writer.end(open);
    writer.into_bytes()
}

// === impl Encoder ===

impl Encoder<'_> {
    fn frame(&mut self, kind: u16, generation: Option<u32>) {
        let open = self
            .writer
            .begin(kind, REQUEST, self.sequence, 0, SUBSYSTEM);
        if let Some(generation) = generation {
            self.writer.u32(BATCH_GENERATION, generation);
        }
        self.writer.end(open);
        self.sequence = self.sequence.wrapping_add(1);
    }

    fn message(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) {
        let open = self.writer.begin(
            SUBSYSTEM << 8 | kind,
            REQUEST | flags,
            self.sequence,
            self.transaction.family.number(),
            0,
        );
        self.writer.string(1, &self.transaction.table);
        body(&mut self.writer);
        self.writer.end(open);
        self.last = Some(open);
        self.sequence = self.sequence.wrapping_add(1);
    }

    fn operation(&mut self, operation: &Operation) {
        match operation {
            Operation::AddTable => self.message(message::NEW_TABLE, CREATE, |_| {}),
            Operation::AddOwnedTable => self.message(message::NEW_TABLE, CREATE, |writer| {
                writer.u32(2, TABLE_OWNER);
            }),
            Operation::DeleteTable => self.message(message::DELETE_TABLE, 0, |_| {}),
            Operation::AddChain(chain) => {
                self.message(message::NEW_CHAIN, CREATE, |writer| {
                    add_chain(writer, chain)
                });
            }
            // Without NFTA_RULE_CHAIN: every rule of the table.
            Operation::FlushTable => self.message(message::DELETE_RULE, 0, |_| {}),
            // NFTA_RULE_CHAIN without a handle means every rule of the chain.
            Operation::FlushChain(chain) => {
                self.message(message::DELETE_RULE, 0, |writer| writer.string(2, chain));
            }
            Operation::DeleteChain(chain) => {
                self.message(message::DELETE_CHAIN, 0, |writer| writer.string(3, chain));
            }
            Operation::DeleteRule { chain, handle } => {
                self.message(message::DELETE_RULE, 0, |writer| {
                    writer.string(2, chain);
                    writer.bytes(3, &handle.to_be_bytes());
                });
            }
            Operation::AddRule { chain, rule } => self.rule(CREATE | APPEND, chain, rule),
            Operation::InsertRule { chain, rule } => self.rule(CREATE, chain, rule),
            Operation::AddSet(set) => {
                let id = self.sequence;
                self.message(message::NEW_SET, CREATE, |writer| add_set(writer, set, id));
            }
            Operation::DeleteSet(set) => {
                self.message(message::DELETE_SET, 0, |writer| writer.string(2, set));
            }
            Operation::AddFlowtable(flowtable) => {
                self.message(message::NEW_FLOWTABLE, CREATE, |writer| {
                    flowtable::encode(writer, flowtable, None);
                });
            }
            Operation::DeleteFlowtable(name) => {
                self.message(message::DELETE_FLOWTABLE, 0, |writer| {
                    flowtable::encode_name(writer, name);
                });
            }
            Operation::AddDevice { flowtable, device } => {
                self.message(message::NEW_FLOWTABLE, CREATE, |writer| {
                    flowtable::encode(writer, flowtable, Some(device));
                });
            }
            Operation::DeleteDevice { flowtable, device } => {
                self.message(message::DELETE_FLOWTABLE, 0, |writer| {
                    flowtable::encode(writer, flowtable, Some(device));
                });
            }
            Operation::AddElements { set, elements } => {
                self.elements(
                    message::NEW_ELEMENTS,
                    CREATE,
                    &set.name,
                    elements.iter(),
                    |w, (key, data)| {
                        element(w, key, data);
                    },
                );
            }
            Operation::DeleteElements { set, keys } => {
                self.elements(
                    message::DELETE_ELEMENTS,
                    0,
                    &set.name,
                    keys.iter(),
                    |w, key| {
                        element(w, key, &ElementData::None);
                    },
                );
            }
        }
    }

    fn rule(&mut self, flags: u16, chain: &str, rule: &Rule) {
        let family = self.transaction.family;
        self.message(message::NEW_RULE, flags, |writer| {
            writer.string(2, chain);
            add_rule(writer, family, rule);
        });
    }

    fn elements<T>(
        &mut self,
        kind: u16,
        flags: u16,
        set: &str,
        elements: impl Iterator<Item = T>,
        write: impl Fn(&mut Writer, T),
    ) {
        let mut elements = elements.peekable();
        while elements.peek().is_some() {
            self.message(kind, flags, |writer| {
                writer.string(2, set);
                let list = writer.nest(3);
                let start = writer.len();
                while writer.len() - start < ELEMENT_LIST_LIMIT {
                    let Some(next) = elements.next() else { break };
                    let open = writer.nest(1);
                    write(writer, next);
                    writer.close(open);
                }
                writer.close(list);
            });
        }
    }
}

fn add_chain(writer: &mut Writer, chain: &Chain) {
    writer.string(3, &chain.name);
    if let Some(hook) = &chain.hook {
        let open = writer.nest(4);
        writer.u32(1, hook_number(hook.point));
        writer.bytes(2, &hook.priority.to_be_bytes());
        writer.close(open);
        writer.string(
            7,
            match hook.kind {
                ChainKind::Filter => "filter",
                ChainKind::Nat => "nat",
                ChainKind::Route => "route",
            },
        );
    }
}

/// `enum nf_inet_hooks`.
pub(crate) fn hook_number(point: HookPoint) -> u32 {
    match point {
        HookPoint::Prerouting => 0,
        HookPoint::Input => 1,
        HookPoint::Forward => 2,
        HookPoint::Output => 3,
        HookPoint::Postrouting => 4,
    }
}

fn add_set(writer: &mut Writer, set: &Set, id: u32) {
    let length = |fields: &[DataType]| {
        fields
            .iter()
            .map(|field| field.width())
            .fold(0u32, |sum, width| {
                sum + u32::try_from(width).expect("widths are at most 16")
            })
    };
    writer.string(2, &set.name);
    writer.u32(3, set_flags(&set.content, set.writer));
    writer.u32(4, concatenation(&set.key));
    writer.u32(
        5,
        match set.key.as_slice() {
            [one] => u32::try_from(one.size()).expect("sizes are at most 16"),
            many => length(many),
        },
    );
    match &set.content {
        SetContent::Membership => {}
        SetContent::Verdicts => {
            // NFT_DATA_VERDICT; the kernel determines the length of a verdict.
            writer.u32(6, 0xffff_ff00);
            writer.u32(7, 16);
        }
        SetContent::Values(fields) => {
            writer.u32(6, concatenation(fields));
            writer.u32(7, length(fields));
        }
    }
    if let SetWriter::Packets { capacity } = set.writer {
        let description = writer.nest(9);
        writer.u32(1, capacity);
        writer.close(description);
    }
    // An id is mandatory, though only anonymous sets are referred to by it.
    writer.u32(10, id);
}

/// `enum nft_set_flags`: `NFT_SET_MAP`; `NFT_SET_TIMEOUT` and `NFT_SET_EVAL`.
pub(crate) fn set_flags(content: &SetContent, writer: SetWriter) -> u32 {
    let map = match content {
        SetContent::Membership => 0,
        SetContent::Verdicts | SetContent::Values(_) => 8,
    };
    match writer {
        SetWriter::Transactions => map,
        SetWriter::Packets { .. } => map | 0x10 | 0x20,
    }
}

/// nft packs the types of a concatenation, six bits each.
pub(crate) fn concatenation(fields: &[DataType]) -> u32 {
    fields
        .iter()
        .fold(0, |packed, field| packed << 6 | field.number())
}

fn element(writer: &mut Writer, key: &Bytes, data: &ElementData) {
    let open = writer.nest(1);
    writer.bytes(1, key.as_slice());
    writer.close(open);
    match data {
        ElementData::None => {}
        ElementData::Value(value) => {
            let open = writer.nest(2);
            writer.bytes(1, value.as_slice());
            writer.close(open);
        }
        ElementData::Verdict(verdict) => {
            let open = writer.nest(2);
            add_verdict(writer, verdict);
            writer.close(open);
        }
    }
}
