//! Serves every endpoint from one process, which answers at each address of its namespace.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use rustix::thread::CpuSet;
use socket2::{Domain, Socket, Type};

use super::population::TARGET;
use crate::network::Namespace;

/// The port of every endpoint, at any address.
const ANYWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, TARGET));
/// How long a server waits before it checks whether to stop.
const PAUSE: Duration = Duration::from_millis(50);
/// The length of the accept queue. If it overflows, the client waits a second to retry.
const WAITING: i32 = 4096;

/// Servers for both protocols. They stop on drop.
#[derive(Debug)]
pub(crate) struct Servers {
    ending: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

// === impl Servers ===

impl Servers {
    /// Starts the servers in the namespace `inside`, on the given processor.
    pub(super) fn start(inside: &Namespace, processor: CpuSet) -> Result<Servers> {
        let tcp = inside.enter(|| {
            let tcp = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            // Connections of the previous round are still in TIME_WAIT.
            tcp.set_reuse_address(true)?;
            tcp.bind(&ANYWHERE.into())?;
            tcp.listen(WAITING)?;
            tcp.set_read_timeout(Some(PAUSE))?;
            std::io::Result::Ok(tcp)
        })??;
        let mut servers = Servers::start_udp(inside, processor)?;
        let ending = Arc::clone(&servers.ending);
        let accepts = thread::spawn(move || accept(&tcp.into(), &processor, &ending));
        servers.threads.push(accepts);
        Ok(servers)
    }

    /// Starts the server of UDP alone.
    pub(crate) fn start_udp(inside: &Namespace, processors: CpuSet) -> Result<Servers> {
        let udp = inside.enter(|| UdpSocket::bind(ANYWHERE))??;
        udp.set_read_timeout(Some(PAUSE))?;
        // An answer must come from the address of the request, which is one of millions.
        setsockopt(&udp, sockopt::Ipv4PacketInfo, &true)?;
        let ending = Arc::new(AtomicBool::new(false));
        let is_ending = Arc::clone(&ending);
        let threads = vec![thread::spawn(move || echo(&udp, &processors, &is_ending))];
        Ok(Servers { ending, threads })
    }

    /// Stops the servers. Fails if one of them has failed.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.ending.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            let joined = thread.join();
            joined.map_err(|_| anyhow::anyhow!("a server has panicked"))??;
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, processors: &CpuSet, ending: &AtomicBool) -> Result<()> {
    rustix::thread::sched_setaffinity(None, processors)?;
    while !ending.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok(connection) => drop(connection),
            Err(error) if is_nothing(&error) => {}
            Err(error) => return Err(error).context("a server of TCP has failed"),
        }
    }
    Ok(())
}

fn echo(socket: &UdpSocket, processors: &CpuSet, ending: &AtomicBool) -> Result<()> {
    rustix::thread::sched_setaffinity(None, processors)?;
    let mut bytes = [0; 64];
    let mut space = cmsg_space!([u8; 32]);
    while !ending.load(Ordering::Relaxed) {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let descriptor = socket.as_raw_fd();
        let received = recvmsg::<SockaddrIn>(
            descriptor,
            &mut buffers,
            Some(&mut space),
            MsgFlags::empty(),
        );
        let message = match received {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            Err(errno) => return Err(errno).context("a server of UDP has failed"),
        };
        let mut asked = message.cmsgs()?.filter_map(|control| match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(info),
            _ => None,
        });
        let mut info = asked
            .next()
            .context("the kernel says which address was asked")?;
        info.ipi_spec_dst = info.ipi_addr;
        info.ipi_ifindex = 0;
        let (length, client) = (message.bytes, message.address);
        let answer = [IoSlice::new(&bytes[..length])];
        let control = [ControlMessage::Ipv4PacketInfo(&info)];
        // The ICMP error of a client that has gone is ignored.
        let _ = sendmsg(
            descriptor,
            &answer,
            &control,
            MsgFlags::empty(),
            client.as_ref(),
        );
    }
    Ok(())
}

fn is_nothing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock
            | std::io::ErrorKind::Interrupted
            | std::io::ErrorKind::ConnectionAborted
    )
}
