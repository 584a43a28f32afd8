use super::*;

use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// A socket pair in place of the kernel: each end receives what the other sends.
fn pair() -> (OwnedFd, OwnedFd) {
    let pair = socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    pair.expect("any process may make one")
}

/// A datagram that does not fit is truncated, and the truncated part would look complete.
#[test]
fn a_datagram_that_does_not_fit_is_an_error_and_not_its_beginning() {
    let (kernel, socket) = pair();
    let mut datagram = [0; 4];
    let mut answer = |bytes: &[u8]| {
        rustix::net::send(&kernel, bytes, SendFlags::empty()).expect("there is room");
        receive(&socket, &mut datagram).map_err(|error| error.kind())
    };
    assert_eq!(answer(b"1234"), Ok(4));
    assert_eq!(answer(b"12345"), Err(io::ErrorKind::FileTooLarge));
}

/// A thread answers each request. It has to receive the request first, so the reply mostly arrives
/// after the wait for it has begun.
#[test]
fn an_answer_that_is_not_there_yet_is_waited_for() {
    let (kernel, socket) = pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut question = [0; 4];
            while receive(&kernel, &mut question).is_ok_and(|length| length > 0) {
                rustix::net::send(&kernel, &question, SendFlags::empty()).expect("there is room");
            }
        });
        for number in 0..1000_u32 {
            let mut answer = [0; 4];
            let question = number.to_ne_bytes();
            rustix::net::send(&socket, &question, SendFlags::empty()).expect("there is room");
            let length = receive(&socket, &mut answer);
            assert_eq!(length.map_err(|error| error.kind()), Ok(4));
            assert_eq!(answer, question);
        }
        // An empty datagram ends the loop of the thread.
        rustix::net::send(&socket, &[], SendFlags::empty()).expect("there is room");
    });
}
