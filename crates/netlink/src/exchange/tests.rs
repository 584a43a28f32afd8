use super::*;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// What a socket hands over of a datagram that is too long looks like all there was.
#[test]
fn a_datagram_that_does_not_fit_is_an_error_and_not_its_beginning() {
    let pair = socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let (kernel, ours) = pair.expect("anybody may make one");
    let mut datagram = [0; 4];
    let mut answer = |bytes: &[u8]| {
        rustix::net::send(&kernel, bytes, SendFlags::empty()).expect("there is room");
        receive(&ours, &mut datagram).map_err(|error| error.kind())
    };
    assert_eq!(answer(b"1234"), Ok(4));
    assert_eq!(answer(b"12345"), Err(io::ErrorKind::FileTooLarge));
}
