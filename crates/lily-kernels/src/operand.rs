//! Operands of kernels: what a launch does with each, and of which elements they are.

use crate::Activation;

/// What a launch does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Writes all of it, reads none of it.
    Write,
    /// Reads and writes it.
    ReadWrite,
}

impl Access {
    /// True unless it only reads.
    pub fn writes(self) -> bool {
        self != Access::Read
    }

    /// True unless it only writes.
    pub fn reads(self) -> bool {
        self != Access::Write
    }
}

/// What an operand consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// Attention's activations, and its caches: of the type that a plan has chosen.
    Activation,
    /// All other activations: of [`Activation::fine`].
    Fine,
    /// f32 whatever the activations are: residuals, gates, logits, recurrent states.
    F32,
    /// u32: token ids, positions, routing.
    U32,
    /// Bytes of a tensor of the checkpoint, of the type that the kernel's parameters name.
    Tensor,
}

impl Element {
    /// Bytes of one; `None` for tensors.
    pub fn bytes(self, activation: Activation) -> Option<usize> {
        match self {
            Element::Activation => Some(activation.bytes()),
            Element::Fine => Some(activation.fine().bytes()),
            Element::F32 | Element::U32 => Some(4),
            Element::Tensor => None,
        }
    }
}

/// One operand of a kernel. A per-slot operand is bound once for each sequence of the launch, after all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// As in the kernel's documentation, and the name of the parameter in its text; a dot in it is an underscore there.
    pub name: &'static str,
    /// What the kernel does with it.
    pub access: Access,
    /// Of what it consists.
    pub element: Element,
    /// Bound once a sequence.
    pub per_slot: bool,
}

impl Operand {
    const fn new(name: &'static str, access: Access) -> Self {
        Operand { name, access, element: Element::F32, per_slot: false }
    }

    /// An operand of f32 that is only read.
    pub const fn read(name: &'static str) -> Self {
        Operand::new(name, Access::Read)
    }

    /// An operand of f32 that is written whole.
    pub const fn write(name: &'static str) -> Self {
        Operand::new(name, Access::Write)
    }

    /// An operand of f32 that is read and written.
    pub const fn update(name: &'static str) -> Self {
        Operand::new(name, Access::ReadWrite)
    }

    /// The same, of attention's activations.
    pub const fn act(self) -> Self {
        Operand { element: Element::Activation, ..self }
    }

    /// The same, of activations that are not attention's.
    pub const fn fine(self) -> Self {
        Operand { element: Element::Fine, ..self }
    }

    /// The same, of u32.
    pub const fn u32(self) -> Self {
        Operand { element: Element::U32, ..self }
    }

    /// The same, of a tensor's bytes.
    pub const fn tensor(self) -> Self {
        Operand { element: Element::Tensor, ..self }
    }

    /// The same, bound once for each sequence.
    pub const fn per_slot(self) -> Self {
        Operand { per_slot: true, ..self }
    }
}

/// Bytes that a launch moves of one operand: each byte counts once, however often it is read. Per-slot operands count for
/// all slots together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Traffic {
    /// Bytes that are only read.
    pub const fn read(bytes: usize) -> Self {
        Traffic { read: bytes as u64, written: 0 }
    }

    /// Bytes that are only written.
    pub const fn written(bytes: usize) -> Self {
        Traffic { read: 0, written: bytes as u64 }
    }

    /// Bytes that are read and written.
    pub const fn updated(bytes: usize) -> Self {
        Traffic { read: bytes as u64, written: bytes as u64 }
    }

    /// Both directions.
    pub const fn total(self) -> u64 {
        self.read + self.written
    }
}
