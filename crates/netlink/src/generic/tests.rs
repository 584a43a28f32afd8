use super::*;

use crate::descriptor::Subsystem;

fn open() -> GenericChannel {
    GenericChannel {
        channel: Channel::open(Subsystem::Generic, 64 << 10).expect("any process may open one"),
        sequence: 0,
    }
}

/// Every kernel has the family `nlctrl`, and none has the other one.
#[test]
fn a_family_that_is_there_is_found_and_one_that_is_not_is_not() {
    for search in [Search::Loaded, Search::Loadable] {
        let mut channel = open();
        let found = channel.find_family("nlctrl", search);
        assert_eq!(found.expect("a family"), Some(FamilyId(CONTROL)));
        let found = channel.find_family("missing", search);
        assert_eq!(found.expect("an answer"), None);
    }
}

#[test]
fn a_channel_that_failed_answers_the_next_question() {
    let mut channel = open();
    channel.channel.abandon();
    let found = channel.find_family("nlctrl", Search::Loaded);
    assert_eq!(found.expect("a family"), Some(FamilyId(CONTROL)));
}

#[test]
fn what_the_kernel_refuses_is_an_error() {
    let mut channel = open();
    // A family that does not exist: ENOENT for every request.
    let encode = |sequence| {
        let mut writer = Writer::default();
        let message = writer.begin_generic(1023, REQUEST, sequence, 1, 1);
        writer.end(message);
        writer.into_bytes()
    };
    let answer = channel.ask("nothing", 1023, encode, |_| Ok(()));
    assert!(
        matches!(answer, Err(QueryError::Refused { .. })),
        "{answer:?}"
    );
}

/// A type reserved by netlink would make the next message an error, or the end of a dump.
#[test]
fn a_number_that_no_family_can_have_is_not_taken() {
    for (number, is_taken) in [
        (0_u16, false),
        (3, false),
        (15, false),
        (16, true),
        (4711, true),
    ] {
        let mut writer = Writer::default();
        let message = writer.begin_generic(CONTROL, 0, 1, NEW_FAMILY, VERSION);
        writer.native_u16(attribute::FAMILY_ID, number);
        writer.end(message);
        let bytes = writer.into_bytes();
        let message = Messages::parse(&bytes).next().expect("one message");
        assert_eq!(family_id(&message).is_ok(), is_taken, "{number}");
    }
}
