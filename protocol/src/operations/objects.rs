//! Which objects of a client's an operation makes and ends: what the client has to say again to a server that takes its
//! session over.
//!
//! Called by both ends of a session. Must not know how an object is made.

use super::*;

/// Something of a client's that lives until an operation ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// A context, by its slot.
    Context(u32),
    /// A stream, by its slot.
    Stream(u32),
    /// The connection that a stream shares.
    StreamConnection(u32),
    /// A block of device or managed memory, by its address.
    DeviceBlock(u64),
    /// A block of page-locked memory, by its address.
    HostBlock(u64),
    /// An image, by its number.
    Image(u64),
    /// A module, by its number.
    Module(u64),
    /// An attribute of a kernel of a module.
    Attribute(u64, u32, u32),
    /// A limit of a context.
    Limit(u32, u32),
    /// A run, by its number.
    Run(u32),
}

/// What an operation does to its client's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// It makes an object, or a part of one, or changes what was set before.
    Makes(Object),
    /// It ends an object, and all that is in it.
    Ends(Object),
    /// It makes something that no other server can make again.
    Irreplaceable,
}

impl Opcode {
    /// Whether the operation does anything to its client's objects.
    #[must_use]
    pub const fn changes_objects(self) -> bool {
        !matches!(
            self,
            Self::NotSupported
                | Self::MemInfo
                | Self::WindowOf
                | Self::StreamWait
                | Self::Detach
                | Self::HostBarrier
                | Self::HostRelease
                | Self::ValueWait
                | Self::ImageDescribe
                | Self::TraceTake
                | Self::TracePut
                | Self::Launch
                | Self::Copy
                | Self::Write
                | Self::Fill
                | Self::EventRecord
                | Self::RunLaunch
                | Self::EventPass
                | Self::EventAwait
                | Self::SemaphoreWait
                | Self::SemaphoreSignal
                | Self::ArrayCopy
                | Self::OutputTake
                | Self::ClusterOccupancy
                | Self::TensorMapEncode
                | Self::TensorMapReplace
        )
    }

    /// What an operation with these fields does to its client's objects; one of a stream has the stream's slot as its
    /// channel. Fields that cannot be are as good as an object that no server can make again.
    #[must_use]
    pub fn effect(self, channel: u32, slots: &[u64]) -> Effect {
        if !self.changes_objects() {
            return Effect::Nothing;
        }
        self.effect_of(channel, slots)
            .unwrap_or(Effect::Irreplaceable)
    }

    fn effect_of(self, channel: u32, slots: &[u64]) -> Result<Effect, Malformed> {
        Ok(match self {
            Self::ContextCreate => {
                Effect::Makes(Object::Context(ContextCreate::read(slots)?.context))
            }
            Self::ContextDestroy => {
                Effect::Ends(Object::Context(ContextDestroy::read(slots)?.context))
            }
            Self::StreamCreate => Effect::Makes(Object::Stream(StreamCreate::read(slots)?.stream)),
            Self::StreamDestroy => Effect::Ends(Object::Stream(channel)),
            Self::StreamConnect => {
                let stream = StreamConnect::read(slots)?.stream;
                Effect::Makes(Object::StreamConnection(stream))
            }
            // Their addresses are only known when they are answered.
            Self::MemAlloc | Self::ManagedAlloc => Effect::Makes(Object::DeviceBlock(0)),
            Self::HostAlloc => Effect::Makes(Object::HostBlock(0)),
            Self::MemFree => Effect::Ends(Object::DeviceBlock(MemFree::read(slots)?.address)),
            Self::HostFree => Effect::Ends(Object::HostBlock(HostFree::read(slots)?.address)),
            Self::ImagePut => Effect::Makes(Object::Image(ImagePut::read(slots)?.image)),
            Self::ImageLoad => Effect::Makes(Object::Image(ImageLoad::read(slots)?.image)),
            Self::ImageUnload => Effect::Ends(Object::Image(ImageUnload::read(slots)?.image)),
            Self::ModuleLoad => Effect::Makes(Object::Module(ModuleLoad::read(slots)?.module)),
            Self::ModuleUnload => Effect::Ends(Object::Module(ModuleUnload::read(slots)?.module)),
            Self::FunctionSet => {
                let set = FunctionSet::read(slots)?;
                Effect::Makes(Object::Attribute(set.module, set.kernel, set.attribute))
            }
            Self::LimitSet => {
                let set = LimitSet::read(slots)?;
                Effect::Makes(Object::Limit(set.context, set.limit))
            }
            Self::RunAdd => Effect::Makes(Object::Run(RunAdd::read(slots)?.run)),
            Self::RunDestroy => Effect::Ends(Object::Run(RunDestroy::read(slots)?.run)),
            _ => Effect::Irreplaceable,
        })
    }

    /// The context that an object belongs to which this operation made.
    #[must_use]
    pub fn home(self, slots: &[u64]) -> Option<u32> {
        let home = match self {
            Self::ContextCreate => ContextCreate::read(slots).map(|it| it.context),
            Self::StreamCreate => StreamCreate::read(slots).map(|it| it.context),
            Self::MemAlloc => MemAlloc::read(slots).map(|it| it.context),
            Self::ManagedAlloc => ManagedAlloc::read(slots).map(|it| it.context),
            Self::HostAlloc => HostAlloc::read(slots).map(|it| it.context),
            Self::ModuleLoad => ModuleLoad::read(slots).map(|it| it.context),
            Self::LimitSet => LimitSet::read(slots).map(|it| it.context),
            _ => return None,
        };
        home.ok()
    }
}

impl Object {
    /// Whether making this again takes the place of what was made before.
    #[must_use]
    pub const fn is_setting(self) -> bool {
        matches!(
            self,
            Self::Attribute(..) | Self::Limit(..) | Self::StreamConnection(_)
        )
    }

    /// Whether this goes with another that ends, contexts aside.
    #[must_use]
    pub fn goes_with(self, ended: Self) -> bool {
        self == ended
            || match (self, ended) {
                (Self::StreamConnection(stream), Self::Stream(of)) => stream == of,
                (Self::Attribute(module, ..), Self::Module(of)) => module == of,
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_replaceable_is_not() {
        for &opcode in OPERATIONS {
            let effect = opcode.effect(0, &[0; MAX_FIELD_SLOTS]);
            assert_eq!(
                effect == Effect::Nothing,
                !opcode.changes_objects(),
                "{opcode:?}"
            );
        }
        let zeroes = [0; MAX_FIELD_SLOTS];
        let in_streams = OPERATIONS.iter().filter(|opcode| opcode.changes_objects());
        let in_streams = in_streams.filter(|opcode| opcode.row().class == OperationClass::Stream);
        assert_eq!(
            in_streams.collect::<Vec<_>>(),
            [&Opcode::StreamDestroy],
            "what streams do is in the ring"
        );
        for opcode in [
            Opcode::ArrayCreate,
            Opcode::HeapSet,
            Opcode::FileMap,
            Opcode::PhysicalMap,
            Opcode::MemImport,
            Opcode::EventShare,
        ] {
            assert_eq!(opcode.effect(0, &zeroes), Effect::Irreplaceable);
        }
    }

    #[test]
    fn a_stream_takes_its_connection_along_and_a_module_its_attributes() {
        let stream = Object::Stream(40);
        assert!(Object::StreamConnection(40).goes_with(stream));
        assert!(!Object::StreamConnection(41).goes_with(stream));
        assert!(Object::Attribute(7, 1, 2).goes_with(Object::Module(7)));
        assert!(!Object::Module(7).goes_with(Object::Attribute(7, 1, 2)));
        assert_eq!(
            Opcode::StreamDestroy.effect(40, &[0]),
            Effect::Ends(stream),
            "the stream's slot is the record's channel"
        );
    }
}
