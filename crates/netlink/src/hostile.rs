//! Messages of real kernels, intact and damaged: decoding one returns an error or exactly what the
//! message contains.
//!
//! `tests/corpus` holds replies recorded on Linux 6.1 and 6.18: of Signpost's own tables, of
//! another program's table (`foreign-*`), of connections, of virtual servers, and notifications
//! received while `nft` ran. It also holds inputs that once caused a failure.
//! `PROPTEST_CASES=1000000` searches for more.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use testkit::{Input, corpus, damaged, try_many};

use crate::nf_tables::{
    self, Bytes, DataType, DecodeError, ElementData, Family, Operation, Set, SetContent, SetWriter,
    Transaction,
};
use crate::notification::{NotificationCollector, Watched};
use crate::wire::Messages;

/// The number of inputs per test for each requested proptest case.
const CASES: u32 = 16;

/// Calls `check` with every recorded input, then with damaged versions of them.
pub(crate) fn for_every_input(check: impl Fn(&[u8])) {
    let mut good = Vec::new();
    for (path, input) in recorded() {
        println!("{}", path.display());
        check(&input.0);
        good.extend(messages_of(&input));
        good.push(input);
    }
    try_many(CASES, &damaged(good, words()), |input| {
        check(&input.0);
        Ok(())
    });
}

fn recorded() -> Vec<(std::path::PathBuf, Input)> {
    corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus"))
}

/// Splits an input into its messages: damage to a long listing rarely affects anything.
fn messages_of(input: &Input) -> Vec<Input> {
    let (mut messages, mut rest) = (Vec::new(), input.0.as_slice());
    for message in Messages::parse(&input.0) {
        let (first, after) = rest.split_at(rest.len().min(message.payload.len() + 16));
        messages.push(Input(first.to_vec()));
        rest = after;
    }
    messages
}

/// Boundary values of lengths and types, and names that lead to other decoders.
fn words() -> Vec<Vec<u8>> {
    let lengths = [0u16, 1, 3, 4, 5, 7, 8, 0x7fff, 0x8000, 0xfffc, 0xffff];
    let lengths = lengths.map(|length| length.to_ne_bytes().to_vec());
    let numbers = [0u32, 1, 15, 16, 17, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    let numbers = numbers.map(|number| number.to_be_bytes().to_vec());
    let names = [
        "payload",
        "meta",
        "ct",
        "cmp",
        "bitwise",
        "lookup",
        "immediate",
        "numgen",
        "hash",
        "dynset",
        "fib",
        "nat",
        "masq",
        "reject",
        "range",
        "counter",
        "flow_offload",
        "match",
        "target",
        "signpost",
        "\u{e9}",
    ];
    let names = names.map(|name| [name.as_bytes(), &[0]].concat());
    lengths.into_iter().chain(numbers).chain(names).collect()
}

/// Encodes `operation` and decodes it again: the result must be the same.
fn expect_to_read_again(family: Family, operation: Operation) {
    let mut transaction = Transaction::new(family, "signpost".into());
    transaction.operations.push(operation);
    let _ = transaction.to_string();
    let batch = nf_tables::encode(&transaction, None, 1);
    let messages: Vec<_> = Messages::parse(&batch.bytes).collect();
    let written = &messages[1..messages.len() - 1];
    let mut elements = Vec::new();
    for message in written {
        match &transaction.operations[0] {
            Operation::AddChain(chain) => {
                let read = nf_tables::chain(message).expect("the encoder wrote it");
                assert_eq!(read.1.as_ref(), Ok(chain));
            }
            Operation::AddRule { rule, .. } => {
                let read = nf_tables::rule(message, family).expect("the encoder wrote it");
                assert_eq!(read.1.as_ref(), Ok(rule));
            }
            Operation::AddFlowtable(flowtable) => {
                let read = nf_tables::flowtable(message).expect("the encoder wrote it");
                assert_eq!(read.1.as_ref(), Ok(&(flowtable.clone(), BTreeSet::new())));
            }
            Operation::AddSet(set) => {
                let read = nf_tables::set(message).expect("the encoder wrote it");
                assert_eq!(read.1.as_ref(), Ok(set));
            }
            _ => elements.extend(nf_tables::elements(message).expect("the encoder wrote it")),
        }
    }
    if let Operation::AddElements { elements: sent, .. } = &transaction.operations[0] {
        assert_eq!(*sent, elements);
    }
}

/// Decodes every message as every kind of object. Returns the number of decoded objects and the
/// errors.
fn decode_all(bytes: &[u8]) -> (usize, Vec<DecodeError>) {
    let (mut objects, mut errors) = (0, Vec::new());
    let mut count = 0;
    for message in Messages::parse(bytes) {
        count += 1;
        let _ = (
            nf_tables::table_state(&message),
            nf_tables::generation(&message),
        );
        let _ = (nf_tables::foreign_chain(&message), message.errno());
        let family = match message.family() {
            Some(10) => Family::Ipv6,
            _ => Family::Ipv4,
        };
        let _ = nf_tables::jump(&message, family);
        let mut take = |operation: Result<Operation, DecodeError>| match operation {
            Ok(operation) => {
                objects += 1;
                expect_to_read_again(family, operation);
            }
            Err(error) => errors.push(error),
        };
        // `NFT_MSG_NEWCHAIN` and so on: an error only counts for the decoder of that message type.
        match message.kind {
            0xa03 => take(nf_tables::chain(&message).and_then(|(_, c)| c.map(Operation::AddChain))),
            0xa06 => take(
                nf_tables::rule(&message, family)
                    .and_then(|(chain, rule)| rule.map(|rule| Operation::AddRule { chain, rule })),
            ),
            0xa09 => take(nf_tables::set(&message).and_then(|(_, s)| s.map(Operation::AddSet))),
            0xa0c => take(nf_tables::elements(&message).map(add_elements)),
            0xa16 => take(
                nf_tables::flowtable(&message)
                    .and_then(|(_, f)| f.map(|(flowtable, _)| Operation::AddFlowtable(flowtable))),
            ),
            _ => {
                let _ = (nf_tables::chain(&message), nf_tables::set(&message));
                let _ = nf_tables::flowtable(&message);
                let _ = (
                    nf_tables::rule(&message, family),
                    nf_tables::elements(&message),
                );
            }
        }
    }
    assert!(
        count <= bytes.len() / 16,
        "more messages than bytes for them"
    );
    (objects, errors)
}

fn add_elements(elements: Vec<(Bytes, ElementData)>) -> Operation {
    let set = Set {
        name: "s".into(),
        key: vec![DataType::Mark],
        content: SetContent::Membership,
        writer: SetWriter::Transactions,
    };
    Operation::AddElements {
        set: Arc::new(set),
        elements,
    }
}

#[test]
fn what_kernels_have_sent_of_signposts_tables_is_read_and_of_others_is_not() {
    for (path, input) in recorded() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (objects, errors) = decode_all(&input.0);
        match name.split('-').next() {
            Some("chains" | "rules" | "sets" | "elements" | "flowtables") => {
                assert!(errors.is_empty(), "{name}: {errors:?}");
                assert!(objects > 0, "{name}");
            }
            // Other programs' chains and elements may look like Signpost's; their sets and rules do
            // not.
            Some("foreign") if !name.contains("chains") && !name.contains("elements") => {
                assert!(!errors.is_empty(), "{name}");
            }
            _ => {}
        }
    }
}

#[test]
fn whatever_an_answer_holds_it_is_an_error_or_reads_the_same_again() {
    for_every_input(|bytes| {
        let (objects, _) = decode_all(bytes);
        assert!(objects <= bytes.len() / 16);
    });
}

#[test]
fn whatever_is_heard_is_reported_or_passed_over() {
    for_every_input(|bytes| {
        let mut collector = NotificationCollector::new(
            Watched::Tables(vec!["signpost"]),
            vec![Arc::new(AtomicU32::new(4711))],
        );
        let heard = collector.take(bytes);
        assert!(heard.len() <= bytes.len() / 16);
    });
}
