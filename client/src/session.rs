//! This process's session with its server: the connection, and every table that the library keeps.
//!
//! The composition root: [`Session::new`] makes the parts and gives each those below it, so that none needs to
//! know the session. Only `api`, the private tables and start-up import it. [`session`] gives it, or says why
//! there is none: cuInit has not succeeded, or this process is a fork's child of one in which it has. The
//! session is made once and never freed, because entry points are called until the process is gone.

mod address_windows;
pub(crate) mod attach;
pub(crate) mod connection;
mod context_lifecycle;
#[cfg_attr(
    test,
    allow(dead_code, reason = "the loader calls it, in the library only")
)]
pub(crate) mod exit_hook;
pub(crate) mod fork_local;
mod job;
mod kernel_output;
mod staging_reclaim;
pub(crate) mod visible_devices;

use std::ops::Deref;

use cuda_abi::CUresult;

use crate::code::Code;
use crate::context::Contexts;
use crate::graph::Graphs;
use crate::graph::capture::Captures;
use crate::graph::exec::Execs;
use crate::memory::address_space::AddressSpace;
use crate::memory::array::Arrays;
use crate::memory::external::Externals;
use crate::memory::managed_advice::Advice;
use crate::memory::pool::Pools;
use crate::memory::ranges::Ranges;
use crate::memory::registered::Registered;
use crate::memory::virtual_memory::VirtualMemory;
use crate::stream::Streams;
use crate::stream::event::Events;
use connection::Connection;
use fork_local::ForkLocal;

static SESSION: ForkLocal<Session> = ForkLocal::new();

/// All that belongs to one attachment. It is a connection, too: what is asked of the server by nobody but an
/// entry point is asked through it.
#[derive(Debug)]
pub(crate) struct Session {
    connection: &'static Connection,
    pub contexts: &'static Contexts,
    pub streams: &'static Streams,
    pub events: &'static Events,
    pub ranges: &'static Ranges,
    pub addresses: &'static AddressSpace,
    pub registered: &'static Registered,
    pub pools: &'static Pools,
    pub arrays: Arrays,
    pub advice: Advice,
    pub virtual_memory: VirtualMemory,
    pub externals: Externals,
    pub code: &'static Code,
    pub graphs: &'static Graphs,
    pub captures: &'static Captures,
    pub execs: Execs,
}

impl Deref for Session {
    type Target = Connection;

    #[inline]
    fn deref(&self) -> &Connection {
        self.connection
    }
}

/// The session of this process.
///
/// # Errors
/// As [`ForkLocal::get`]'s.
#[inline]
pub(crate) fn session() -> Result<&'static Session, CUresult> {
    SESSION.get()
}

/// Takes the session out of reach, because the process ends, and gives it for a last word.
fn withdraw() -> Option<&'static Session> {
    let session = SESSION.withdraw();
    Contexts::withdraw();
    Streams::withdraw();
    Registered::withdraw();
    session
}

/// Whether cuInit succeeded in this process or in the one that it was forked from.
pub(crate) fn was_published() -> bool {
    SESSION.was_published()
}

/// For the life of the process.
fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Session {
    /// The parts of a session, over a connection to a server that has `all_devices`.
    pub(crate) fn new(connection: Connection, all_devices: u32) -> Self {
        let connection = kept(connection);
        let contexts = kept(Contexts::new(connection, all_devices));
        let streams = kept(Streams::new(contexts));
        let events = kept(Events::new(connection));
        let ranges = kept(Ranges::default());
        let registered = kept(Registered::new(connection, ranges));
        let pools = kept(Pools::new(connection, &streams.waits));
        let addresses = kept(AddressSpace::new(connection, ranges, registered));
        let code = kept(Code::new(connection, ranges, events));
        let graphs = kept(Graphs::new(streams, events, ranges, pools, code));
        Self {
            connection,
            contexts,
            streams,
            events,
            ranges,
            addresses,
            registered,
            pools,
            arrays: Arrays::default(),
            advice: Advice::default(),
            virtual_memory: VirtualMemory::default(),
            externals: Externals::default(),
            code,
            graphs,
            captures: kept(Captures::new(graphs)),
            execs: Execs::new(graphs),
        }
    }

    /// The connection to the server.
    pub(crate) fn connection(&self) -> &'static Connection {
        self.connection
    }

    /// Makes it this process's. To be called once; the caller holds the lock of cuInit.
    ///
    /// # Errors
    /// As [`ForkLocal::publish`]'s.
    pub(crate) fn publish(self) -> Result<(), CUresult> {
        let session = kept(self);
        session.contexts.publish(session)?;
        session.streams.publish(session.captures)?;
        session.registered.publish()?;
        SESSION.publish(session)
    }
}
