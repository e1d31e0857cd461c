use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A rank that says nothing for so long is lost.
const SILENCE_MAX: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(1);
/// Far above anything that is ever sent; more is not from one of us.
const LENGTH_MAX: u32 = 1 << 30;

/// A line between two ranks. A message is a small JSON head and a body of bytes, each preceded by its length.
#[derive(Debug)]
pub(crate) struct Line {
    stream: TcpStream,
}

impl Line {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(Self { stream })
    }

    pub(crate) fn connect(host: &str, port: u16) -> io::Result<Self> {
        let mut addresses = (host, port).to_socket_addrs()?;
        let address = addresses.next().ok_or(io::Error::from(ErrorKind::AddrNotAvailable))?;
        Self::new(TcpStream::connect_timeout(&address, CONNECT)?)
    }

    pub(crate) fn send(&mut self, head: &impl Serialize, body: &[u8]) -> io::Result<()> {
        let head = serde_json::to_vec(head)?;
        let mut message = Vec::with_capacity(8 + head.len() + body.len());
        message.extend((head.len() as u32).to_le_bytes());
        message.extend((body.len() as u32).to_le_bytes());
        message.extend(head);
        message.extend(body);
        self.stream.write_all(&message)
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<(T, Vec<u8>)> {
        let mut lengths = [0; 8];
        self.stream.read_exact(&mut lengths)?;
        let [a, b, c, d, e, f, g, h] = lengths;
        let head = self.read(u32::from_le_bytes([a, b, c, d]))?;
        let body = self.read(u32::from_le_bytes([e, f, g, h]))?;
        Ok((serde_json::from_slice(&head)?, body))
    }

    /// Whether something was said; an error if the other side is gone. Does not wait.
    pub(crate) fn has_message(&self) -> io::Result<bool> {
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match peeked {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read(&self, length: u32) -> io::Result<Vec<u8>> {
        if length > LENGTH_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a message of {length} bytes")));
        }
        // Memory grows with what really comes, not with what was announced.
        let mut bytes = Vec::new();
        let read = (&self.stream).take(u64::from(length)).read_to_end(&mut bytes)?;
        if read < length as usize { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
    }
}
