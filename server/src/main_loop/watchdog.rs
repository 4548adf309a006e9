//! Whether devices make progress: a device that has been given work, of which nothing ends for long, is named, with what each
//! client has there; and again when something ends.
//!
//! That something ends is all that is known: a device may well be at work on a kernel that takes long. Whose kernels may run
//! for a limited time is waited for, as the limit ends them. Asked by the main loop, some times in the time that a device may be
//! still. Must not know whom it is told.

use std::time::Duration;

use engine::InFlight;

/// How long a device may be still, unless something else is set.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks in the time that a device may be still.
const LOOKS: u32 = 3;

/// What a client has, as a look finds it.
#[derive(Debug)]
pub(super) struct ClientWork {
    /// Who it is, for the log.
    pub(super) name: String,
    /// Operations that are complete, by device.
    pub(super) completed: Vec<u64>,
    /// What devices have of its work.
    pub(super) in_flight: Vec<InFlight>,
    /// A limit will end its kernels.
    pub(super) is_limited: bool,
}

/// What a look at a device has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It has been still since then, in nanoseconds of CLOCK_MONOTONIC, with this in flight.
    Still(u64, String),
    /// One of which that was said goes on, after so long.
    GoesOn(Duration),
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// What was complete at the last look.
    completed: u64,
    /// Since when that is so, or the device has work, in nanoseconds of CLOCK_MONOTONIC.
    since: u64,
    /// It was said that it is still.
    told: bool,
}

/// What is known of each device.
#[derive(Debug)]
pub(super) struct Watchdog {
    patience: Option<Duration>,
    devices: Vec<Progress>,
}

impl Watchdog {
    /// One of so many devices, which may be still for so long; without a time it never says anything.
    pub(super) fn new(patience: Option<Duration>, devices: usize) -> Self {
        Self {
            patience,
            devices: vec![Progress::default(); devices],
        }
    }

    /// How long until the next look, while there are clients.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.patience.map(|patience| patience / LOOKS)
    }

    /// Looks at the devices, and gives what there is to say of which. `now` is CLOCK_MONOTONIC in nanoseconds.
    pub(super) fn look(&mut self, now: u64, clients: &[ClientWork]) -> Vec<(usize, Finding)> {
        let Some(patience) = self.patience else {
            return Vec::new();
        };
        let devices = self.devices.iter_mut().enumerate();
        devices
            .filter_map(|(device, progress)| {
                let finding = progress.look(now, patience, device, clients)?;
                Some((device, finding))
            })
            .collect()
    }
}

impl Progress {
    fn look(
        &mut self,
        now: u64,
        patience: Duration,
        device: usize,
        clients: &[ClientWork],
    ) -> Option<Finding> {
        let completed = clients
            .iter()
            .filter_map(|client| client.completed.get(device))
            .fold(0, |sum: u64, count| sum.wrapping_add(*count));
        let on_it = |work: &&InFlight| work.device as usize == device;
        let busy: Vec<(&ClientWork, Vec<&InFlight>)> = clients
            .iter()
            .map(|client| (client, client.in_flight.iter().filter(on_it).collect()))
            .filter(|(_, works): &(_, Vec<_>)| !works.is_empty())
            .collect();
        let moves = completed != self.completed || busy.is_empty();
        // Of what has been there since the last progress, or later.
        let begun = busy.iter().flat_map(|(_, works)| works);
        let begun = begun.map(|work| work.since.unwrap_or(0)).min();
        let begun = begun.unwrap_or(now);
        if moves || busy.iter().any(|(client, _)| client.is_limited) {
            let since = std::mem::replace(&mut self.since, now);
            self.completed = completed;
            let told = std::mem::replace(&mut self.told, false);
            return told.then(|| Finding::GoesOn(Duration::from_nanos(now.saturating_sub(since))));
        }
        self.since = self.since.max(begun.min(now));
        let still = Duration::from_nanos(now.saturating_sub(self.since));
        if self.told || still < patience {
            return None;
        }
        self.told = true;
        let each = busy.iter().map(|(client, works)| client.has(works, now));
        let text = each.collect::<Vec<_>>().join("; ");
        Some(Finding::Still(self.since, text))
    }
}

impl ClientWork {
    /// In words, what it has on a device.
    fn has(&self, works: &[&InFlight], now: u64) -> String {
        let each = works.iter().map(|work| {
            let seconds = work
                .since
                .map(|since| now.saturating_sub(since) / 1_000_000_000);
            let time = seconds.map_or_else(String::new, |seconds| format!(" for {seconds} s"));
            format!("{}{time} in stream {}", work.what, work.stream)
        });
        format!("{}: {}", self.name, each.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn client(name: &str, completed: u64, kernel: Option<u64>) -> ClientWork {
        let work = kernel.map(|since| InFlight {
            stream: 64,
            device: 1,
            what: "kernel k".into(),
            since: Some(since * SECOND),
        });
        ClientWork {
            name: name.into(),
            completed: vec![0, completed],
            in_flight: work.into_iter().collect(),
            is_limited: false,
        }
    }

    fn watchdog() -> Watchdog {
        Watchdog::new(Some(Duration::from_secs(30)), 2)
    }

    #[test]
    fn a_device_on_which_nothing_ends_is_told_of_once_and_when_it_goes_on() {
        let mut watchdog = watchdog();
        let mut look =
            |second: u64, clients: &[ClientWork]| watchdog.look(second * SECOND, clients);
        assert_eq!(look(100, &[client("a", 5, Some(95))]), [], "just seen");
        assert_eq!(look(110, &[client("a", 5, Some(95))]), []);
        let clients = [
            client("a", 5, Some(95)),
            client("b", 0, Some(120)),
            client("c", 0, None),
        ];
        let text = "a: kernel k for 36 s in stream 64; b: kernel k for 11 s in stream 64";
        assert_eq!(
            look(131, &clients),
            [(1, Finding::Still(100 * SECOND, text.into()))]
        );
        assert_eq!(look(141, &clients), [], "once");
        let clients = [client("a", 6, None), client("b", 0, Some(120))];
        assert_eq!(
            look(151, &clients),
            [(1, Finding::GoesOn(Duration::from_secs(51)))]
        );
        assert_eq!(look(161, &clients), []);
    }

    #[test]
    fn nothing_is_said_of_a_device_that_is_idle_or_where_something_ends() {
        let mut watchdog = watchdog();
        let mut look =
            |second: u64, clients: &[ClientWork]| watchdog.look(second * SECOND, clients);
        for second in (0..1000).step_by(10) {
            assert_eq!(look(second, &[client("a", 5, None)]), [], "idle");
        }
        // One begins after a long time in which there was nothing to do.
        assert_eq!(look(1005, &[client("a", 5, Some(1004))]), []);
        assert_eq!(look(1030, &[client("a", 5, Some(1004))]), []);
        // A kernel that does not end, beside a client whose short ones do.
        for second in 0..100 {
            let clients = [client("a", 5, Some(1004)), client("b", second, None)];
            assert_eq!(look(1031 + 10 * second, &clients), []);
        }
    }

    #[test]
    fn a_kernel_that_a_limit_will_end_is_waited_for() {
        let mut watchdog = watchdog();
        let limited = ClientWork {
            is_limited: true,
            ..client("a", 5, Some(1))
        };
        for second in (0..500).step_by(10) {
            assert_eq!(
                watchdog.look(second * SECOND, std::slice::from_ref(&limited)),
                []
            );
        }
    }

    /// A call of the driver that does not return, of which no beginning is known.
    #[test]
    fn what_cannot_be_looked_at_counts_from_the_last_progress() {
        let mut watchdog = watchdog();
        let mut client = client("a", 5, Some(0));
        client.in_flight[0].since = None;
        let clients = [client];
        assert_eq!(watchdog.look(100 * SECOND, &clients), []);
        assert_eq!(watchdog.look(110 * SECOND, &clients), []);
        let found = watchdog.look(131 * SECOND, &clients);
        let text = "a: kernel k in stream 64".to_owned();
        assert_eq!(found, [(1, Finding::Still(100 * SECOND, text))]);
    }

    #[test]
    fn without_a_time_nothing_is_said() {
        let mut off = Watchdog::new(None, 2);
        assert_eq!(off.interval(), None);
        assert_eq!(off.look(SECOND, &[client("a", 0, Some(0))]), []);
        assert_eq!(off.look(900 * SECOND, &[client("a", 0, Some(0))]), []);
    }
}
