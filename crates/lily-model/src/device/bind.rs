//! From a plan's bindings to the memory of a device that runs the texts of GPUs.

use lily_kernels::{Element, Operand, SLOTS, Text};

use crate::DeviceError;
use crate::plan::{Buffer, Launch, View};

/// Where a device keeps each buffer.
pub trait Memory {
    /// An address of its memory.
    type Address: Copy + PartialEq;

    /// Where a buffer starts, and its bytes. Of keys, values and states the pool of all sequences.
    fn buffer(&self, buffer: Buffer) -> Option<(Self::Address, usize)>;

    /// The address so many bytes further on, which are inside of the buffer.
    fn offset(start: Self::Address, bytes: usize) -> Self::Address;
}

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<A> {
    /// Its first byte.
    pub start: A,
    /// Bytes from there on that belong to it; of a pool, all.
    pub bytes: usize,
}

/// The place of each operand of a launch.
pub fn operands<M: Memory>(memory: &M, launch: &Launch) -> Result<Vec<Place<M::Address>>, DeviceError> {
    let mut bindings = launch.bindings.iter();
    let operands = launch.kernel.operands().iter();
    operands.map(|operand| place(memory, launch, operand, &mut bindings)).collect()
}

fn place<'v, M: Memory>(
    memory: &M,
    launch: &Launch,
    operand: &Operand,
    bindings: &mut impl Iterator<Item = &'v View>,
) -> Result<Place<M::Address>, DeviceError> {
    let wrong = |what: &str| {
        let (name, label, kernel) = (operand.name, launch.label, launch.kernel.name());
        DeviceError::Failed(format!("operand {name} of {label} ({kernel}) {what}"))
    };
    if operand.per_slot {
        let views: Vec<&View> = bindings.take(launch.kernel.slots()).collect();
        return pool(memory, &views, operand.element).ok_or_else(|| wrong("is bound to no pool"));
    }
    let view = bindings.next().ok_or_else(|| wrong("is not bound"))?;
    let found = match slot_and_element(view.buffer) {
        None => memory.buffer(view.buffer).filter(|(_, bytes)| view.bytes.end <= *bytes),
        Some(_) => None,
    };
    let (start, _) = found.ok_or_else(|| wrong(&format!("has no such bytes: {view:?}")))?;
    Ok(Place { start: M::offset(start, view.bytes.start), bytes: view.bytes.len() })
}

/// The pool of a per-slot operand. Its bindings name the slots in order, in one layer.
fn pool<M: Memory>(memory: &M, views: &[&View], element: Element) -> Option<Place<M::Address>> {
    let mut found = None;
    for (n, view) in views.iter().enumerate() {
        let (slot, holds) = slot_and_element(view.buffer)?;
        let place = memory.buffer(view.buffer)?;
        if slot != n || holds != element || found.is_some_and(|other| other != place) {
            return None;
        }
        found = Some(place);
    }
    found.map(|(start, bytes)| Place { start, bytes })
}

/// Of buffers that each sequence has of its own: the sequence's place in the launch, and what the pool holds.
fn slot_and_element(buffer: Buffer) -> Option<(usize, Element)> {
    match buffer {
        Buffer::DeltaState { slot, .. } | Buffer::ConvState { slot, .. } => Some((slot, Element::F32)),
        Buffer::Keys { slot, .. } | Buffer::Values { slot, .. } => Some((slot, Element::Activation)),
        _ => None,
    }
}

/// The buffers of a text by number; the one that it takes by value is `None`.
pub fn buffers<M: Memory>(
    memory: &M,
    text: &Text,
    operands: &[Operand],
    places: &[Place<M::Address>],
) -> Result<Vec<Option<M::Address>>, DeviceError> {
    let missing = |name: &str| DeviceError::Failed(format!("{} has no buffer {name}", text.path));
    let mut buffers = vec![None; text.buffers()];
    for (operand, place) in operands.iter().zip(places) {
        buffers[text.buffer(operand.name).ok_or_else(|| missing(operand.name))?] = Some(place.start);
    }
    if let Some(n) = text.buffer(SLOTS).filter(|n| buffers[*n].is_none()) {
        buffers[n] = memory.buffer(Buffer::Slots).map(|(start, _)| start);
    }
    let value = text.value_buffer();
    match (0..buffers.len()).find(|n| buffers[*n].is_none() && Some(*n) != value) {
        Some(n) => Err(DeviceError::Failed(format!("buffer {n} of {} is not bound", text.path))),
        None => Ok(buffers),
    }
}
