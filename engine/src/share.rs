//! What a client or a group of clients may have of a device's processors, and how finely a device can be divided.
//!
//! Servers fill it in, engines read it. Must not know how an engine holds a client to its share.

/// In which steps a device's multiprocessors are shared out among clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// A share is a multiple of this.
    pub step: u32,
    /// And no less than this.
    pub least: u32,
    /// And no more than this, unless it is the whole device.
    pub most: u32,
}

impl Default for Granularity {
    fn default() -> Self {
        Self {
            step: 1,
            least: 1,
            most: u32::MAX,
        }
    }
}

impl Granularity {
    /// The multiprocessors, of `all`, that an active thread percentage grants: rounded down to the
    /// step, and within the bounds. The whole device is the whole device, whatever these are.
    #[must_use]
    pub fn granted(self, all: u32, percentage: f32) -> u32 {
        if percentage >= 100.0 {
            return all;
        }
        let exact = f64::from(all) * f64::from(percentage) / 100.0;
        // A percentage such as 33.3 is no exact number; what is a hair below a whole one is it.
        let whole = (exact + 1e-4).floor() as u32;
        let stepped = whole - whole % self.step.max(1);
        stepped.min(self.most).max(self.least).min(all)
    }
}

/// A client's part of the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Active thread percentage, above 0 and up to 100: the part of the SMs that the client sees. For
    /// engines that share out time it is the weight of its work against others', for those that give
    /// out multiprocessors as many as it has at most.
    pub percentage: f32,
    /// CUDA_MPS_CLIENT_PRIORITY: 0 normal, 1 below normal.
    pub priority: u32,
    /// The client is held to its percentage, even if nobody else wants the rest, and that part is
    /// kept free for it, even while it does nothing.
    pub reserved: bool,
}

impl Default for Share {
    /// All of the device, reserved from nobody.
    fn default() -> Self {
        Self {
            percentage: 100.0,
            priority: 0,
            reserved: false,
        }
    }
}

impl Share {
    /// A part of the device, of which nothing is reserved.
    #[must_use]
    pub fn of(percentage: f32) -> Self {
        Self {
            percentage,
            ..Self::default()
        }
    }

    /// A part of the device that is reserved.
    #[must_use]
    pub fn reserving(percentage: f32) -> Self {
        Self {
            reserved: true,
            ..Self::of(percentage)
        }
    }
}

/// The part of the devices that all clients of a group have together. They share it by their own
/// percentages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupShare {
    /// Of which device, by its place among the engine's; `None` for each. Engines whose devices share
    /// their processors take it as a part of these.
    pub device: Option<u32>,
    /// Above 0 and up to 100.
    pub percentage: f32,
    /// As [`Share::reserved`], for the group.
    pub reserved: bool,
}

impl GroupShare {
    /// Whether it is a part of this device.
    #[must_use]
    pub fn is_of(&self, device: usize) -> bool {
        self.device.is_none_or(|of| of as usize == device)
    }
}

#[cfg(test)]
mod tests {
    use super::Granularity;

    /// As measured on an H200 (132 multiprocessors), and as reported for a device of 188 and a T4.
    #[test]
    fn percentages_grant_multiprocessors_as_measured() {
        let hopper = Granularity {
            step: 2,
            least: 8,
            ..Granularity::default()
        };
        for (percentage, granted) in [
            (1.0, 8),
            (5.0, 8),
            (10.0, 12),
            (25.0, 32),
            (33.0, 42),
            (33.3, 42),
            (50.0, 66),
            (66.0, 86),
            (75.0, 98),
            (90.0, 118),
            (100.0, 132),
        ] {
            assert_eq!(hopper.granted(132, percentage), granted, "{percentage} %");
        }
        for (percentage, granted) in [(10.0, 18), (25.0, 46), (75.0, 140)] {
            assert_eq!(hopper.granted(188, percentage), granted, "{percentage} %");
        }
        let older = Granularity {
            step: 2,
            least: 2,
            ..Granularity::default()
        };
        assert_eq!(older.granted(40, 10.0), 4);
        let single = Granularity::default();
        assert_eq!(single.granted(3, 50.0), 1);
        assert_eq!(single.granted(3, 1.0), 1);
        assert_eq!(hopper.granted(4, 50.0), 4, "no more than there are");
        assert_eq!(hopper.granted(133, 100.0), 133);
        let grouped = Granularity {
            step: 8,
            least: 8,
            most: 120,
        };
        for (percentage, granted) in [(1.0, 8), (33.0, 40), (91.0, 120), (99.0, 120), (100.0, 132)]
        {
            assert_eq!(grouped.granted(132, percentage), granted, "{percentage} %");
        }
    }
}
