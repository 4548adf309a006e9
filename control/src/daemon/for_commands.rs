//! What commands see of the daemon, and what of it they change by themselves. Everything that needs a server's word, the
//! daemon does itself, in the file of its subject.
//!
//! Called by `commands` only. Must not know a command's words, nor who may give it.

use protocol::control_messages::ListedDevice;

use super::Daemon;
use crate::files::instance::Instance;
use crate::groups::Groups;
use crate::servers::limits::ServerLimits;
use crate::servers::registry::{Client, Registry, Server, ServerId};

impl Daemon {
    /// Its directories and logs.
    pub(crate) const fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Its servers and their clients.
    pub(crate) const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Groups of clients.
    pub(crate) const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The devices of the last server that became ready; none if none has.
    pub(crate) fn devices(&self) -> &[ListedDevice] {
        &self.devices
    }

    /// Whether clients have contexts in static partitions only.
    pub(crate) const fn has_static_partitions(&self) -> bool {
        self.static_partitions
    }

    /// The limits of later servers' clients.
    pub(crate) const fn defaults(&self) -> &ServerLimits {
        &self.defaults
    }

    /// Changes the limits of later servers' clients, which may name devices.
    pub(crate) fn change_defaults<R>(
        &mut self,
        change: impl FnOnce(&mut ServerLimits, &[ListedDevice]) -> R,
    ) -> R {
        change(&mut self.defaults, &self.devices)
    }

    /// The priority of clients that ask for none.
    pub(crate) const fn default_priority(&self) -> u32 {
        self.default_priority
    }

    /// Sets the priority of later clients that ask for none.
    pub(crate) const fn set_default_priority(&mut self, priority: u32) {
        self.default_priority = priority;
    }

    /// Reads or changes what the daemon keeps of a server.
    pub(crate) fn with_server<R>(
        &mut self,
        id: ServerId,
        change: impl FnOnce(&mut Server) -> R,
    ) -> Option<R> {
        self.registry.servers.get_mut(&id).map(change)
    }

    /// Gives a server's settings to all contexts of its user.
    pub(crate) fn share_settings(&mut self, id: ServerId) {
        self.registry.share_settings(id);
    }

    /// A client, to be labelled.
    pub(crate) fn client_mut(&mut self, id: ServerId, session: u64) -> Option<&mut Client> {
        self.registry
            .servers
            .get_mut(&id)?
            .clients
            .get_mut(&session)
    }
}
