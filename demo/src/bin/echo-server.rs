//! Answers every TCP connection, UDP datagram and SCTP association with its own name and the
//! observed addresses.
//!
//! `echo-server NAME ADDRESS:PORT…` prints `listening` once it listens on every address with each
//! protocol that the kernel supports. The answer is a line with its name, the local address and the
//! client's address. After that, a connection echoes its input. The program ends when its input
//! does.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use demo::network::sctp_socket;
use socket2::Domain;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name: Arc<str> = arguments.next().context("a name is missing")?.into();
    for address in arguments {
        let address: SocketAddr = address
            .parse()
            .with_context(|| format!("{address:?} is not ADDRESS:PORT"))?;
        let failed = || format!("failed to listen on {address}");
        let listener = TcpListener::bind(address).with_context(failed)?;
        let socket = UdpSocket::bind(address).with_context(failed)?;
        for listener in [Some(listener), listen_sctp(address).with_context(failed)?] {
            let name = Arc::clone(&name);
            thread::spawn(move || listener.map(|listener| serve_connections(&listener, &name)));
        }
        let udp_name = Arc::clone(&name);
        thread::spawn(move || serve_udp(&socket, address, &udp_name));
    }
    println!("listening");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

/// SCTP associations are accepted, read and written with the same system calls as TCP connections.
fn listen_sctp(address: SocketAddr) -> io::Result<Option<TcpListener>> {
    let Some(socket) = sctp_socket(Domain::for_address(address))? else {
        return Ok(None);
    };
    socket.bind(&address.into())?;
    socket.listen(128)?;
    Ok(Some(socket.into()))
}

fn serve_connections(listener: &TcpListener, name: &Arc<str>) {
    // A connection that broke before it was accepted is an error of the client.
    for stream in listener.incoming().flatten() {
        let name = Arc::clone(name);
        thread::spawn(move || serve_connection(stream, &name));
    }
}

fn serve_connection(mut stream: TcpStream, name: &str) -> io::Result<()> {
    let line = format!("{name} {} {}\n", stream.local_addr()?, stream.peer_addr()?);
    stream.write_all(line.as_bytes())?;
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length])?;
    }
}

fn serve_udp(socket: &UdpSocket, address: SocketAddr, name: &str) {
    let mut buffer = [0; 2048];
    loop {
        // An error here is an ICMP error about an earlier answer to a client that is gone.
        if let Ok((_, client)) = socket.recv_from(&mut buffer) {
            let line = format!("{name} {address} {client}\n");
            drop(socket.send_to(line.as_bytes(), client));
        }
    }
}
