//! A stream that records when data was read from it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A stream that records when data was read from it.
#[derive(Debug)]
pub(crate) struct ActivityStream<'a> {
    stream: &'a mut TcpStream,
    moved: &'a AtomicBool,
}

// === impl ActivityStream ===

impl<'a> ActivityStream<'a> {
    /// Wraps `stream`; sets `moved` on every read.
    pub(crate) fn new(stream: &'a mut TcpStream, moved: &'a AtomicBool) -> ActivityStream<'a> {
        ActivityStream { stream, moved }
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(self.get_mut().stream)
    }
}

impl AsyncRead for ActivityStream<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = self.moved;
        let before = buffer.filled().len();
        let polled = self.stream().poll_read(context, buffer);
        if buffer.filled().len() > before {
            moved.store(true, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for ActivityStream<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}
