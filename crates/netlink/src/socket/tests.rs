use std::sync::atomic::Ordering;

use super::*;

/// What is asked is a number that nobody else's rules depend on; without `CAP_NET_ADMIN` the kernel
/// refuses, which is an answer too.
fn asks_and_is_answered(socket: &mut Socket) -> bool {
    match socket.observe_generation() {
        Ok(_) => true,
        Err(ObserveError::Refused { source, .. }) => {
            source.kind() == std::io::ErrorKind::PermissionDenied
        }
        Err(_) => false,
    }
}

/// Answers to a question that was given up would be taken for answers to the next one.
#[test]
fn a_socket_that_failed_is_opened_anew_and_told_by_its_new_port() {
    let mut socket = Socket::open().expect("anybody may open one");
    assert!(asks_and_is_answered(&mut socket));
    let (port, before) = (socket.port(), socket.port().load(Ordering::Relaxed));
    assert_ne!(before, 0);

    socket.channel.fail();
    assert!(asks_and_is_answered(&mut socket));

    assert!(!socket.channel.has_failed());
    assert_ne!(port.load(Ordering::Relaxed), before);
}

#[test]
fn it_is_not_opened_anew_in_another_network() {
    let mut socket = Socket::open().expect("anybody may open one");
    socket.channel.displace();
    socket.channel.fail();
    assert!(!asks_and_is_answered(&mut socket));
    assert!(socket.channel.has_failed());
}
