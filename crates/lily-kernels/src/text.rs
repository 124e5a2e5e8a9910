//! The Metal texts of the kernels, and how a launch is made of one.

/// A parameter of a kernel's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextParameter {
    /// Its type: `device const ACT*`.
    pub kind: &'static str,
    /// Its name.
    pub name: &'static str,
    /// `buffer`, `TG_PARAM`, or what tells a thread its place.
    pub attribute: &'static str,
    /// The number of a buffer or of threadgroup memory.
    pub index: usize,
}

/// A kernel in Metal Shading Language. Its function has the name of the file.
#[derive(Debug)]
pub struct Text {
    /// Of the function.
    pub name: &'static str,
    /// Of the file, from the crate's folder.
    pub path: &'static str,
    /// With its own headers pasted in; compiled with `ACT` defined as the activations' type.
    pub source: &'static str,
    /// In order.
    pub parameters: &'static [TextParameter],
    /// Type and name of each function constant, by index.
    pub constants: &'static [(&'static str, &'static str)],
}

/// The parameter that carries the table of sequences ([`SLOT_WORDS`]).
pub const SLOTS: &str = "slots";

/// Words of a sequence in the table `slots`, u32 `[slots, SLOT_WORDS]` and behind it the page tables:
///
/// 0. the place of its recurrent state in the pools of states, which a launch reads;
/// 1. the place that a launch writes: the other one in decode, so that a step can be taken back;
/// 2. where its page table begins, in words from the start of `slots`; the table holds the page of every 64 tokens;
/// 3. not 0 if the sequence is done: kernels then leave its state as it is.
pub const SLOT_WORDS: usize = 4;

impl Text {
    /// The number of the buffer of an operand, of [`SLOTS`], or of the parameters by value.
    pub fn buffer(&self, name: &str) -> Option<usize> {
        let same = |p: &&TextParameter| p.attribute == "buffer" && p.name == name.replace('.', "_");
        self.parameters.iter().find(same).map(|p| p.index)
    }

    /// The number of the buffer that takes the parameters by value.
    pub fn value_buffer(&self) -> Option<usize> {
        self.parameters.iter().find(|p| p.attribute == "buffer" && p.kind.ends_with('&')).map(|p| p.index)
    }

    /// How many buffers a launch binds.
    pub fn buffers(&self) -> usize {
        self.parameters.iter().filter(|p| p.attribute == "buffer").count()
    }
}

/// How a GPU runs a kernel: a text, what specializes it, and the shape of the launch.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The text.
    pub text: &'static Text,
    /// Function constants by index, as words.
    pub constants: Vec<u32>,
    /// Parameters by value, as words.
    pub params: Vec<u32>,
    /// Threadgroups.
    pub grid: [usize; 3],
    /// Threads of each.
    pub threads: [usize; 3],
    /// Bytes of each `TG_PARAM`.
    pub threadgroup_bytes: Vec<usize>,
}

impl Dispatch {
    /// A launch without threadgroup memory of variable size.
    pub fn new(
        text: &'static Text,
        constants: Vec<u32>,
        params: Vec<u32>,
        grid: [usize; 3],
        threads: [usize; 3],
    ) -> Self {
        Dispatch { text, constants, params, grid, threads, threadgroup_bytes: Vec::new() }
    }
}
