//! A long-lived TCP connection of a process on the node.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::deadline::patience;
use tests::network::Namespace;

/// The timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// An open connection to an echo server.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    server: String,
}

// === impl Connection ===

impl Connection {
    /// Connects, and reads the name of the server.
    pub(crate) fn open(inside: &Namespace, to: SocketAddr) -> Result<Connection> {
        let stream = inside.enter(|| TcpStream::connect(to))??;
        stream.set_read_timeout(Some(patience(PATIENCE)))?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let server = line.split(' ').next().context("a server says its name")?;
        Ok(Connection {
            server: server.to_owned(),
            stream,
        })
    }

    /// Returns the name of the server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Sends a line and waits for its echo.
    pub(crate) fn echoes(&mut self, text: &str) -> Result<()> {
        let mut answer = String::new();
        writeln!(self.stream.get_mut(), "{text}")?;
        self.stream.read_line(&mut answer)?;
        ensure!(
            answer.trim_end() == text,
            "{answer:?} came back of {text:?}"
        );
        Ok(())
    }

    /// Sends this many bytes, closes the sending side, and waits for all of them and the end.
    pub(crate) fn expect_all_back(mut self, length: usize) -> Result<()> {
        // The period is not a power of two, so that a lost or duplicated block is detected.
        let sent: Vec<u8> = (0..=250_u8).cycle().take(length).collect();
        let mut writer = self.stream.get_ref().try_clone()?;
        let mut heard = Vec::new();
        std::thread::scope(|scope| -> Result<()> {
            let writing = scope.spawn(|| {
                writer.write_all(&sent)?;
                writer.shutdown(Shutdown::Write)
            });
            self.stream.read_to_end(&mut heard)?;
            writing.join().ok().context("the writer panicked")??;
            Ok(())
        })?;
        ensure!(
            heard == sent,
            "{} of {length} bytes came back, and not as they were",
            heard.len()
        );
        Ok(())
    }
}
