//! Answers in protobuf, written byte by byte, so that the field numbers are tested, too.

use catalog::object::EndpointSlice;
use futures::FutureExt;
use futures::io::Cursor;
use proptest::prelude::*;
use prost::bytes::Bytes;

use super::super::failure::WatchError;
use super::super::wire::list_reader::ListReader;
use super::super::wire::protobuf::{parse_event, parse_status, read_frame};
use super::super::wire::{Decoded, Line, ListHeader, Unreadable, Watched};
use super::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A text, bytes or a message.
fn bytes(field: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let length = u64::try_from(value.len()).expect("it is short");
    [varint(field << 3 | 2), varint(length), value.to_vec()].concat()
}

fn entry(field: u64, key: &str, value: &str) -> Vec<u8> {
    bytes(field, [bytes(1, key), bytes(2, value)].concat())
}

/// The envelope that an API server puts around everything.
fn enveloped(kind: &str, object: &[u8]) -> Vec<u8> {
    let kind = [bytes(1, "v1"), bytes(2, kind)].concat();
    let unknown = [bytes(1, kind), bytes(2, object), bytes(3, ""), bytes(4, "")];
    [b"k8s\0".to_vec(), unknown.concat()].concat()
}

fn event(kind: &str, object: &[u8]) -> Vec<u8> {
    let object = bytes(1, enveloped("Service", object));
    let event = [bytes(1, kind), bytes(2, object)].concat();
    let length = u32::try_from(event.len()).expect("it is short");
    [length.to_be_bytes().to_vec(), event].concat()
}

fn metadata(name: &str, version: &str) -> Vec<u8> {
    [
        bytes(1, name),
        bytes(2, ""),
        bytes(3, "shop"),
        bytes(5, "6f0e"),
        bytes(6, version),
        number(7, 0),
        bytes(8, [number(1, 1_767_323_045), number(2, 0)].concat()),
        entry(11, "app", name),
        entry(12, "kubectl.kubernetes.io/last-applied-configuration", "{}"),
        bytes(17, [bytes(1, "kubectl"), bytes(2, "Update")].concat()),
    ]
    .concat()
}

/// The protobuf form of [`service_json`].
fn service_message(name: &str, version: &str) -> Vec<u8> {
    let target = [number(1, 1), number(2, 0), bytes(3, "web")].concat();
    let port = [
        bytes(1, "http"),
        bytes(2, "TCP"),
        number(3, 80),
        bytes(4, target),
        number(5, 0),
    ];
    let spec = [
        bytes(1, port.concat()),
        entry(2, "app", name),
        bytes(3, "10.96.0.10"),
        bytes(4, "ClusterIP"),
        bytes(7, "None"),
        bytes(8, ""),
        bytes(11, ""),
        number(12, 0),
        number(13, 0),
        bytes(17, "SingleStack"),
        bytes(18, "10.96.0.10"),
        bytes(19, "IPv4"),
    ];
    let status = bytes(1, "");
    [
        bytes(1, metadata(name, version)),
        bytes(2, spec.concat()),
        bytes(3, status),
    ]
    .concat()
}

fn bookmark(version: &str) -> Vec<u8> {
    event("BOOKMARK", &bytes(1, bytes(6, version)))
}

fn end_of_list(version: &str) -> Vec<u8> {
    let end = entry(12, "k8s.io/initial-events-end", "true");
    event("BOOKMARK", &bytes(1, [bytes(6, version), end].concat()))
}

fn list(version: &str, continued: &str, items: &[Vec<u8>]) -> Vec<u8> {
    let metadata = bytes(1, [bytes(2, version), bytes(3, continued)].concat());
    let items: Vec<Vec<u8>> = items.iter().map(|item| bytes(2, item)).collect();
    enveloped("ServiceList", &[metadata, items.concat()].concat())
}

fn status(code: u64, reason: &str, message: &str) -> Vec<u8> {
    [
        bytes(1, ""),
        bytes(2, "Failure"),
        bytes(3, message),
        bytes(4, reason),
        number(6, code),
    ]
    .concat()
}

#[tokio::test(start_paused = true)]
async fn services_and_slices_are_asked_for_in_protobuf_and_the_rest_in_json() {
    let mut server = ApiServer::start();
    let protobuf = "application/vnd.kubernetes.protobuf, application/json";
    for (path, accept) in [
        (SERVICES, Some(protobuf)),
        (SLICES, Some(protobuf)),
        (NODES, None),
        (SERVICE_CIDRS, None),
        (NODE_PROXIES, None),
    ] {
        let asked = server.asked(path).await;
        assert_eq!(asked.accept.as_deref(), accept, "{path}");
        asked.cut();
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_in_protobuf_delivers_what_one_in_json_does() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let mut cut = list("7", "", &[service_message("cart", "4")]);
    cut.truncate(40);
    server.asked(SERVICES).await.answer_in(PROTOBUF, 200, cut);
    let watch = server.asked(SERVICES).await.watch_in(WATCH);
    let frames = [
        event("ADDED", &service_message("cart", "5")),
        end_of_list("7"),
        event("MODIFIED", &service_message("cart", "8")),
        event("DELETED", &service_message("cart", "9")),
        bookmark("30"),
    ];
    // However the network splits the stream.
    for part in frames.concat().chunks(7) {
        watch.raw(part.to_vec());
    }
    for expected in [
        reported(Event::Init),
        reported(Event::Init),
        reported(Event::InitApply(service("cart", "5"))),
        reported(Event::InitDone),
        reported(Event::Apply(service("cart", "8"))),
        reported(Event::Delete(ObjectKey::namespaced("shop", "cart"))),
    ] {
        assert_eq!(server.delivery().await, expected);
    }
    drop(watch);
    let resumed = server.asked(SERVICES).await.query;
    assert!(resumed.ends_with("&resourceVersion=30"), "{resumed}");
}

#[tokio::test(start_paused = true)]
async fn refusals_and_errors_in_protobuf_count_by_their_code() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let invalid = enveloped("Status", &status(422, "Invalid", "no sendInitialEvents"));
    let mut cut = list("70", "", &[service_message("cart", "5")]);
    cut.truncate(60);
    server.asked(SERVICES).await.answer_in(PROTOBUF, 200, cut);
    let asked = server.asked(SERVICES).await;
    asked.answer_in(PROTOBUF, 422, invalid);
    let page = server.asked(SERVICES).await;
    assert!(page.query.ends_with("&limit=500"), "{}", page.query);
    let items = [service_message("cart", "5")];
    page.answer_in(PROTOBUF, 200, list("70", "more", &items));
    let page = server.asked(SERVICES).await;
    assert!(page.query.ends_with("&continue=more"), "{}", page.query);
    page.answer_in(PROTOBUF, 200, list("70", "", &[]));
    for expected in [
        reported(Event::Init),
        reported(Event::Init),
        reported(Event::InitApply(service("cart", "5"))),
        reported(Event::InitDone),
    ] {
        assert_eq!(server.delivery().await, expected);
    }
    let resumed = server.asked(SERVICES).await;
    assert!(resumed.query.ends_with("&resourceVersion=70"));
    let expired = status(410, "Expired", "too old resource version: 70 (90)");
    resumed.watch_in(WATCH).raw(event("ERROR", &expired));
    let again = server.asked(SERVICES).await;
    assert_eq!(again.query, WHOLE);
    again.answer_in(PROTOBUF, 200, list("92", "", &[]));
    let resumed = server.asked(SERVICES).await;
    assert!(resumed.query.ends_with("&resourceVersion=92"));
    // Whatever the body says.
    resumed.answer_in(PROTOBUF, 410, "gone");
    assert_eq!(server.asked(SERVICES).await.query, WHOLE);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_from_protobuf_is_named() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let whole = server.asked(SERVICES).await;
    whole.answer_in(PROTOBUF, 200, list("3", "", &[]));
    let watch = server.asked(SERVICES).await.watch_in(WATCH);
    // A number in place of the spec.
    let broken = [bytes(1, metadata("broken", "4")), number(2, 1)].concat();
    watch.raw(event("ADDED", &broken));
    // An object without a name.
    watch.raw(event("ADDED", &number(1, 1)));
    watch.raw(event("ADDED", &service_message("cart", "5")));
    assert_eq!(server.delivery().await, reported(Event::Init));
    assert_eq!(server.delivery().await, reported(Event::InitDone));
    match server.delivery().await {
        Delivery::Objects(Change::Service(event)) => match *event {
            Event::Undecodable { key, message, .. } => {
                assert_eq!(key, ObjectKey::namespaced("shop", "broken"));
                assert!(message.contains("spec"), "{message}");
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    let good = reported(Event::Apply(service("cart", "5")));
    assert_eq!(server.delivery().await, good);
}

#[tokio::test]
async fn a_list_is_read_object_by_object_and_one_that_ends_early_is_cut() {
    // Neither a name nor an object.
    let items = [
        service_message("cart", "5"),
        number(1, 1),
        service_message("till", "6"),
    ];
    let whole = list("70", "more", &items);
    let (names, header) = read_list(&whole).await.expect("it is whole");
    assert_eq!(names, ["cart", "till"]);
    assert_eq!(header.version.as_deref(), Some("70"));
    assert_eq!(header.continued.as_deref(), Some("more"));
    // What follows the list in its envelope is two empty strings, which the parser skips.
    let end = whole.len() - 4;
    for length in 0..whole.len() {
        match (length >= end, read_list(&whole[..length]).await) {
            (true, Ok(_)) | (false, Err(WatchError::Cut(_))) => {}
            (_, other) => panic!("{length} bytes: {other:?}"),
        }
    }
}

async fn read_list(body: &[u8]) -> Result<(Vec<String>, ListHeader), WatchError> {
    let mut reader = ListReader::open(Cursor::new(body)).await?;
    let mut names = Vec::new();
    while let Some(decoded) = reader.next::<Service>().await? {
        match decoded {
            Decoded::Good(service) => names.push(service.metadata.name),
            Decoded::Bad { message, .. } => panic!("{message}"),
        }
    }
    Ok((names, reader.into_header()))
}

#[tokio::test]
async fn a_watch_that_ends_within_a_frame_is_cut() {
    let frame = event("ADDED", &service_message("cart", "5"));
    for length in 0..frame.len() {
        let read = read_frame(&mut Cursor::new(&frame[..length])).await;
        match (length, read) {
            (0, Ok(None)) => {}
            (1.., Err(WatchError::Cut(_))) => {}
            (_, other) => panic!("{length} bytes: {other:?}"),
        }
    }
    let whole = read_frame(&mut Cursor::new(&frame)).await;
    let whole = whole.expect("it is whole").expect("it is there");
    assert_eq!(whole, frame[4..]);
    for length in 0..whole.len() {
        let parsed = parse_event::<Service>(whole.slice(..length));
        assert!(
            matches!(parsed, Err(WatchError::Unreadable(_)) | Ok(Line::Nameless)),
            "{length} bytes: {parsed:?}"
        );
    }
}

#[tokio::test]
async fn a_frame_that_no_event_fills_is_not_read() {
    let read = read_frame(&mut Cursor::new(u32::MAX.to_be_bytes())).await;
    assert!(
        matches!(
            read,
            Err(WatchError::Unreadable(Unreadable::LongFrame(4_294_967_295)))
        ),
        "{read:?}"
    );
}

fn skim_list<T: Watched>(body: &Bytes) {
    let read = async {
        let mut reader = ListReader::open(Cursor::new(body)).await?;
        while reader.next::<T>().await?.is_some() {}
        Ok::<_, WatchError>(())
    };
    let _ = read.now_or_never().expect("nothing is waited for");
}

/// All of them, whatever `body` is.
fn parse_all(body: &Bytes) {
    let _ = parse_event::<Service>(body.clone());
    let _ = parse_event::<EndpointSlice>(body.clone());
    skim_list::<Service>(body);
    skim_list::<EndpointSlice>(body);
    let _ = parse_status(body.clone());
}

proptest! {
    #[test]
    fn no_bytes_break_the_decoder(
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        at in any::<proptest::sample::Index>(),
        flipped in 1u8..,
    ) {
        parse_all(&Bytes::from(noise.clone()));
        let object = [service_message("cart", "5"), noise.clone()].concat();
        for whole in [
            enveloped("Service", &noise),
            enveloped("ServiceList", &bytes(2, &object)),
            event("ADDED", &object)[4..].to_vec(),
        ] {
            parse_all(&Bytes::from(whole.clone()));
            let mut damaged = whole;
            let at = at.index(damaged.len());
            damaged[at] ^= flipped;
            parse_all(&Bytes::from(damaged));
        }
    }
}
