//! The four socket options of `ip_tables` and `ip6_tables`, as byte buffers.
//!
//! Source: include/uapi/linux/netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h and
//! netfilter/x_tables.h; net/ipv4/netfilter/ip_tables.c.

#![allow(
    unsafe_code,
    reason = "no safe crate passes these options, and one of them holds a pointer"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::layout::{COUNTERS, REPLACE, REPLACE_COUNTERS, REPLACE_COUNTERS_NUMBER, read_u32};
use crate::Family;

/// `IPT_SO_GET_INFO`.
const GET_INFO: c_int = 64;
/// `IPT_SO_GET_ENTRIES`.
const GET_ENTRIES: c_int = 65;
/// `IPT_SO_SET_REPLACE`.
const SET_REPLACE: c_int = 64;
/// `IPT_SO_SET_ADD_COUNTERS`.
const SET_ADD_COUNTERS: c_int = 65;

/// Fills in a `struct ipt_getinfo`.
pub(super) fn observe_info(
    socket: BorrowedFd<'_>,
    family: Family,
    argument: &mut [u8],
) -> io::Result<()> {
    get(socket, family, GET_INFO, argument)
}

/// Fills in a `struct ipt_get_entries`, which states the expected size.
pub(super) fn observe_entries(
    socket: BorrowedFd<'_>,
    family: Family,
    argument: &mut [u8],
) -> io::Result<()> {
    get(socket, family, GET_ENTRIES, argument)
}

/// Performs a `struct ipt_replace`, and fills `counters` with the counters of the replaced entries.
pub(super) fn commit_replacement(
    socket: BorrowedFd<'_>,
    family: Family,
    argument: &mut [u8],
    counters: &mut [u8],
) -> io::Result<()> {
    let expected = read_u32(argument, REPLACE_COUNTERS_NUMBER).map(|number| number as usize);
    let room = counters.len() / COUNTERS;
    let pointer = counters.as_mut_ptr().expose_provenance().to_ne_bytes();
    let place = argument.get_mut(REPLACE_COUNTERS..REPLACE_COUNTERS + pointer.len());
    match place {
        Some(place) if expected.is_some_and(|expected| expected <= room) => {
            place.copy_from_slice(&pointer);
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    if argument.len() < REPLACE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set(socket, family, SET_REPLACE, argument)
}

/// Performs a `struct xt_counters_info`.
pub(super) fn commit_counters(
    socket: BorrowedFd<'_>,
    family: Family,
    argument: &[u8],
) -> io::Result<()> {
    set(socket, family, SET_ADD_COUNTERS, argument)
}

fn level(family: Family) -> c_int {
    match family {
        Family::Ipv4 => libc::SOL_IP,
        Family::Ipv6 => libc::SOL_IPV6,
    }
}

/// The length as a C int, as the kernel takes it.
fn length(argument: &[u8]) -> io::Result<c_int> {
    c_int::try_from(argument.len()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// For options whose argument contains no pointers.
fn get(
    socket: BorrowedFd<'_>,
    family: Family,
    option: c_int,
    argument: &mut [u8],
) -> io::Result<()> {
    let mut length: libc::socklen_t = length(argument)?.cast_unsigned();
    // SAFETY: the descriptor is borrowed for the whole call. The kernel writes at most `length`
    // bytes to `argument`, which is that long and borrowed mutably; `length` is a local socklen_t.
    // Neither option that is passed here makes the kernel write anywhere else, and every byte is a
    // valid u8.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level(family),
            option,
            argument.as_mut_ptr().cast::<c_void>(),
            &raw mut length,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// For options whose argument contains no pointers except the one that [`commit_replacement`]
/// inserts.
fn set(socket: BorrowedFd<'_>, family: Family, option: c_int, argument: &[u8]) -> io::Result<()> {
    let length: libc::socklen_t = length(argument)?.cast_unsigned();
    // SAFETY: the descriptor is borrowed for the whole call. The kernel reads `length` bytes of
    // `argument`, which is that long. One of the two options makes the kernel write: SET_REPLACE,
    // which only `commit_replacement` passes. The kernel writes to the pointer that
    // `commit_replacement` has just inserted, for a number of counters that it has checked against
    // the buffer's length. `commit_replacement` borrows that buffer mutably until the call has
    // returned.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level(family),
            option,
            argument.as_ptr().cast::<c_void>(),
            length,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
