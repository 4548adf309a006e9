//! How a plugin is ended: by who has its [`Stopper`], while its tasks watch their [`Stop`].
//!
//! Called by `openmps kubernetes plugin`, and by the plugin's tasks. Must not know why it ends.

use std::time::Duration;

use tokio::sync::watch;

/// Ends a plugin.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// What a plugin watches for its end.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// A pair of them.
#[must_use]
pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Ends it.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Waits for the end.
    pub(super) async fn wait(&mut self) {
        // Whoever could stop us being gone is an end as well.
        self.0.wait_for(|stop| *stop).await.ok();
    }

    /// Waits a while; whether it is the end.
    pub(super) async fn within(&mut self, while_: Duration) -> bool {
        tokio::time::timeout(while_, self.wait()).await.is_ok()
    }
}
