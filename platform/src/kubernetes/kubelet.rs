//! Connections from kubelets, whose requests are mended on their way ([`super::authority`]).
//!
//! Called by `plugin` for each connection. Must not know HTTP: bytes pass through.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

use super::authority::AuthorityFixer;

/// A connection from a kubelet.
#[derive(Debug)]
pub struct FixedConnection {
    stream: UnixStream,
    mender: AuthorityFixer,
    ended: bool,
}

impl FixedConnection {
    /// Mends what comes from here.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            mender: AuthorityFixer::default(),
            ended: false,
        }
    }
}

impl Connected for FixedConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for FixedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let given = this.mender.read_fixed(out.initialize_unfilled());
            out.advance(given);
            if given > 0 || this.ended || out.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; 8 << 10];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                this.ended = true;
                this.mender.end();
            } else {
                this.mender.push(buffer.filled());
            }
        }
    }
}

impl AsyncWrite for FixedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
