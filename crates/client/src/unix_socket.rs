//! HTTP over a socket of this machine, where the system tells the server who asks.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};

/// Opens connections to one socket, whatever the address of a request says.
#[derive(Debug)]
pub(crate) struct SocketConnector(pub(crate) PathBuf);

impl Connector for SocketConnector {
    type Out = SocketTransport;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<SocketTransport>, Error> {
        let socket = Arc::new(Socket(UnixStream::connect(&self.0)?));
        let handle: Weak<Socket> = Arc::downgrade(&socket);
        (details.register_shutdown)(handle)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(SocketTransport { socket, buffers }))
    }
}

struct Socket(UnixStream);

impl ShutdownHandle for Socket {
    fn shutdown(&self) {
        // It is closed already where this fails.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// One connection.
pub(crate) struct SocketTransport {
    socket: Arc<Socket>,
    buffers: LazyBuffers,
}

impl fmt::Debug for SocketTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketTransport").finish_non_exhaustive()
    }
}

impl Transport for SocketTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let (timeout, mut stream) = (timeout.for_write(), &self.socket.0);
        stream.set_write_timeout(timeout.not_zero().map(|after| *after))?;
        stream.write_all(&self.buffers.output()[..amount]).map_err(|error| told(error, &timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let (timeout, mut stream) = (timeout.for_read(), &self.socket.0);
        stream.set_read_timeout(timeout.not_zero().map(|after| *after))?;
        let room = self.buffers.input_append_buf();
        let amount = loop {
            match stream.read(room) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.map_err(|error| told(error, &timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // Whatever comes unasked, or an end, makes it unusable for another request.
        let probe = || -> io::Result<bool> {
            self.socket.0.set_nonblocking(true)?;
            let read = (&self.socket.0).read(&mut [0]);
            self.socket.0.set_nonblocking(false)?;
            Ok(matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock))
        };
        probe().unwrap_or(false)
    }
}

/// What the system calls a wait that would go on is the end of the time there was.
fn told(error: io::Error, timeout: &NextTimeout) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}
