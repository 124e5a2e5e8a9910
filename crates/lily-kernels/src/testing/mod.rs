//! Launches with their inputs and expected results, for every device that runs the texts (feature `testing`): the emulator,
//! its sanitizers, NVIDIA GPUs.

mod bounds;
mod complaint;
mod matrix;
mod write;

use crate::random::Random;
use crate::{Activation, Dispatch, Element, Kernel, PlainType, SLOT_WORDS};

pub use bounds::{Bounds, TINY, dot, magnitude};
pub use matrix::Matrix;
pub use write::write_cases;

/// A kernel whose text is tested.
pub trait GpuCases: Sized {
    /// Which launches: both sides of each threshold, ragged sizes, everything that a plan may ask for.
    fn gpu_cases() -> Vec<Self>;

    /// Inputs and expected results. Only called with activations for which [`GpuCases::takes`] is true.
    fn case(&self, activation: Activation, random: &mut Random) -> Case;

    /// Whether this launch is tested with this type of activations.
    fn takes(&self, _activation: Activation) -> bool {
        true
    }
}

/// A launch, its inputs, and what it must leave.
#[derive(Clone, Debug)]
pub struct Case {
    /// The kernel and its sizes.
    pub kernel: Kernel,
    /// Of the text.
    pub activation: Activation,
    /// In the order of the kernel's operands; a per-slot operand once, as the pool of all sequences.
    pub operands: Vec<CaseOperand>,
    /// The table of sequences and their page tables, for texts that take it.
    pub slots: Vec<u32>,
    /// The data make the launch touch exactly what [`Kernel::traffic`] declares; otherwise at most that.
    pub touches_all: bool,
}

/// Memory of an operand before and after a launch.
#[derive(Clone, Debug)]
pub struct CaseOperand {
    /// The type of its elements.
    pub store: Store,
    /// Before.
    pub bytes: Vec<u8>,
    /// After.
    pub check: Check,
}

/// How elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// float32.
    F32,
    /// bfloat16.
    Bf16,
    /// float16.
    F16,
    /// u32.
    U32,
    /// Bytes.
    U8,
}

/// What must be there after a launch.
#[derive(Clone, Debug)]
pub enum Check {
    /// What was there before.
    Same,
    /// Values, each within its error; where the value is NaN, what was there before.
    Near {
        /// Expected.
        want: Vec<f64>,
        /// How far off each may be.
        error: Vec<f64>,
    },
    /// Anything: scratch memory.
    Any,
}

impl Store {
    /// Of elements of an operand.
    pub fn of(element: Element, activation: Activation) -> Store {
        match (element, activation) {
            (Element::U32, _) => Store::U32,
            (Element::Tensor, _) => Store::U8,
            (Element::Fine, _) => Store::of(Element::Activation, activation.fine()),
            (Element::F32, _) | (Element::Activation, Activation::F32) => Store::F32,
            (Element::Activation, Activation::Bf16) => Store::Bf16,
            (Element::Activation, Activation::F16) => Store::F16,
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Store::F32 | Store::U32 => 4,
            Store::Bf16 | Store::F16 => 2,
            Store::U8 => 1,
        }
    }

    /// `f32`, `bf16`, `f16`, `u32` or `u8`.
    pub fn name(self) -> &'static str {
        match self {
            Store::F32 => "f32",
            Store::Bf16 => "bf16",
            Store::F16 => "f16",
            Store::U32 => "u32",
            Store::U8 => "u8",
        }
    }

    /// What storing leaves of a value.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Store::Bf16 => crate::bf16_to_f32(crate::bf16_bits(value)),
            Store::F16 => half_to_f32(half_bits(value)),
            _ => value,
        }
    }

    /// The bytes of values.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Store::Bf16 => PlainType::Bf16.encode(values),
            Store::F16 => values.iter().flat_map(|v| half_bits(*v).to_le_bytes()).collect(),
            Store::F32 => PlainType::F32.encode(values),
            Store::U32 | Store::U8 => panic!("{self:?} holds no reals"),
        }
    }
}

/// The nearest float16, ties to even; what is below its smallest normal number becomes 0, what is too large infinite.
pub fn half_bits(value: f32) -> u16 {
    let (bits, sign) = (value.to_bits() & 0x7fff_ffff, (value.to_bits() >> 16) as u16 & 0x8000);
    if bits > 0x7f80_0000 {
        return 0x7e00;
    }
    if bits < 0x3880_0000 {
        return sign;
    }
    let rounded = bits + 0xfff + ((bits >> 13) & 1);
    if rounded >= 0x4780_0000 { sign | 0x7c00 } else { sign | ((rounded - 0x3800_0000) >> 13) as u16 }
}

/// A float16 without denormals.
pub fn half_to_f32(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    match rest >> 10 {
        0 => f32::from_bits(sign),
        31 => f32::from_bits(sign | 0x7f80_0000 | (rest & 0x3ff) << 13),
        _ => f32::from_bits(sign | ((rest << 13) + 0x3800_0000)),
    }
}

/// Collects the operands of a case in the order of a kernel's operands.
#[derive(Debug)]
pub struct CaseBuilder {
    kernel: Kernel,
    activation: Activation,
    operands: Vec<CaseOperand>,
    slots: Vec<u32>,
    touches_all: bool,
}

impl CaseBuilder {
    /// Nothing yet.
    pub fn new(kernel: impl Into<Kernel>, activation: Activation) -> Self {
        let (operands, slots) = (Vec::new(), Vec::new());
        CaseBuilder { kernel: kernel.into(), activation, operands, slots, touches_all: true }
    }

    fn store(&self) -> Store {
        let operand = &self.kernel.operands()[self.operands.len()];
        Store::of(operand.element, self.activation)
    }

    fn push(mut self, store: Store, bytes: Vec<u8>, check: Check) -> Self {
        self.operands.push(CaseOperand { store, bytes, check });
        self
    }

    /// What the next operand leaves of values: round inputs with it before the reference sees them.
    pub fn rounded(&self, values: &[f32]) -> Vec<f32> {
        values.iter().map(|v| self.store().round(*v)).collect()
    }

    /// The next operand: values that are only read.
    ///
    /// # Panics
    /// If one is not exact in the operand's type (see [`CaseBuilder::rounded`]).
    pub fn input(self, values: &[f32]) -> Self {
        let store = self.store();
        let exact = |v: &f32| v.is_nan() || store.round(*v) == *v;
        assert!(values.iter().all(exact), "{:?}: an input is not exact as {}", self.kernel, store.name());
        self.push(store, store.encode(values), Check::Same)
    }

    /// The next operand: integers that are only read.
    pub fn ids(self, values: &[u32]) -> Self {
        self.push(Store::U32, values.iter().flat_map(|v| v.to_le_bytes()).collect(), Check::Same)
    }

    /// The next operand: bytes of a tensor.
    pub fn tensor(self, bytes: &[u8]) -> Self {
        self.push(Store::U8, bytes.to_vec(), Check::Same)
    }

    /// The next operand, written whole: starts as NaN.
    pub fn output(self, want: Vec<f64>, error: Vec<f64>) -> Self {
        let store = self.store();
        self.output_as(store, want, error)
    }

    /// The same for an operand whose elements depend on the kernel's parameters.
    pub fn output_as(self, store: Store, want: Vec<f64>, error: Vec<f64>) -> Self {
        assert_eq!(want.len(), error.len());
        let bytes = vec![0xff; want.len() * store.bytes()];
        self.push(store, bytes, Check::Near { want, error })
    }

    /// The next operand: integers that are written, exactly.
    pub fn output_ids(self, want: &[u32]) -> Self {
        let values: Vec<f64> = want.iter().map(|v| f64::from(*v)).collect();
        let error = vec![0.0; values.len()];
        self.output_as(Store::U32, values, error)
    }

    /// The next operand: values before and after. A NaN in `want` stands for what was there.
    pub fn update(self, before: &[f32], want: Vec<f64>, error: Vec<f64>) -> Self {
        let store = self.store();
        self.update_as(store, before, want, error)
    }

    /// The same for an operand whose elements depend on the kernel's parameters.
    pub fn update_as(self, store: Store, before: &[f32], want: Vec<f64>, error: Vec<f64>) -> Self {
        assert!(want.len() == error.len() && before.len() == want.len());
        self.push(store, store.encode(before), Check::Near { want, error })
    }

    /// The next operand: integers before and after.
    pub fn update_ids(self, before: &[u32], want: &[u32]) -> Self {
        assert_eq!(before.len(), want.len());
        let bytes = before.iter().flat_map(|v| v.to_le_bytes()).collect();
        let want: Vec<f64> = want.iter().map(|v| f64::from(*v)).collect();
        let error = vec![0.0; want.len()];
        self.push(Store::U32, bytes, Check::Near { want, error })
    }

    /// The next operand: memory of some elements that may hold anything afterwards.
    pub fn scratch(self, len: usize) -> Self {
        let store = self.store();
        self.push(store, vec![0xff; len * store.bytes()], Check::Any)
    }

    /// The table of sequences: for each its state's place, the place to write, its page table, and whether it is done.
    pub fn slots(mut self, table: &[(u32, u32, Vec<u32>, bool)]) -> Self {
        let mut pages: Vec<u32> = Vec::new();
        for (state, next, table_pages, done) in table {
            let at = (table.len() * SLOT_WORDS + pages.len()) as u32;
            self.slots.extend([*state, *next, at, u32::from(*done)]);
            pages.extend(table_pages);
        }
        self.slots.extend(pages);
        self
    }

    /// The data do not make the launch touch everything that it declares.
    pub fn touches_less(mut self) -> Self {
        self.touches_all = false;
        self
    }

    /// The case.
    ///
    /// # Panics
    /// If an operand is missing.
    pub fn build(self) -> Case {
        assert_eq!(self.operands.len(), self.kernel.operands().len(), "{:?}", self.kernel);
        let CaseBuilder { kernel, activation, operands, slots, touches_all } = self;
        Case { kernel, activation, operands, slots, touches_all }
    }
}

impl Case {
    /// How it is launched.
    ///
    /// # Panics
    /// If the kernel has no text.
    pub fn dispatch(&self) -> Dispatch {
        match self.kernel.dispatch() {
            Some(dispatch) => dispatch,
            None => panic!("{:?} has no text", self.kernel),
        }
    }
}

/// The cases of all kernels that have a text, with every type of activations that they take.
pub fn gpu_cases() -> Vec<Case> {
    fn of<K: GpuCases>(all: &mut Vec<Case>) {
        for activation in Activation::ALL {
            for (seed, kernel) in K::gpu_cases().iter().enumerate() {
                if kernel.takes(activation) {
                    all.push(kernel.case(activation, &mut Random::new(seed as u64)));
                }
            }
        }
    }
    let mut all = Vec::new();
    of::<crate::select::SelectSlices>(&mut all);
    of::<crate::select::SelectToken>(&mut all);
    of::<crate::delta::ConvSilu>(&mut all);
    of::<crate::delta::ConvState>(&mut all);
    of::<crate::delta::DeltaPrep>(&mut all);
    of::<crate::delta::DeltaScan>(&mut all);
    of::<crate::delta::DeltaStep>(&mut all);
    of::<crate::delta::DeltaStream>(&mut all);
    of::<crate::norm::RmsNorm>(&mut all);
    of::<crate::norm::GatedNorm>(&mut all);
    of::<crate::quant::Embed>(&mut all);
    of::<crate::quant::Matmul>(&mut all);
    of::<crate::quant::Swiglu>(&mut all);
    of::<crate::quant::NormMatmul>(&mut all);
    of::<crate::quant::GatedNormMatmul>(&mut all);
    of::<crate::quant::NormSwiglu>(&mut all);
    of::<crate::quant::SiluMul>(&mut all);
    of::<crate::quant::Dequantize>(&mut all);
    of::<crate::moe::Route>(&mut all);
    of::<crate::moe::Combine>(&mut all);
    of::<crate::moe::GroupTiles>(&mut all);
    of::<crate::moe::GroupedSwiglu>(&mut all);
    of::<crate::moe::GroupedMatmul>(&mut all);
    of::<crate::moe::GroupedDense>(&mut all);
    of::<crate::moe::RoutedSwiglu>(&mut all);
    of::<crate::moe::RoutedMatmul>(&mut all);
    of::<crate::moe::DownCombine>(&mut all);
    of::<crate::attention::AttentionPrep>(&mut all);
    of::<crate::attention::SplitQuery>(&mut all);
    of::<crate::attention::HeadNorm>(&mut all);
    of::<crate::attention::Rope>(&mut all);
    of::<crate::attention::CacheWrite>(&mut all);
    of::<crate::attention::Attend>(&mut all);
    of::<crate::attention::AttendBlocks>(&mut all);
    of::<crate::attention::AttendCombine>(&mut all);
    of::<crate::attention::AttendStep>(&mut all);
    of::<crate::attention::AttendStepBlocks>(&mut all);
    all
}

/// Widens.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// A random plain tensor: its bytes and what they mean.
pub fn plain(
    random: &mut Random,
    kind: PlainType,
    len: usize,
    mean: f32,
    spread: f32,
) -> (Vec<u8>, Vec<f64>) {
    let values: Vec<f32> = (0..len).map(|_| mean + spread * random.unit()).collect();
    let bytes = kind.encode(&values);
    let read: Vec<f32> = (0..len).map(|i| kind.get(&bytes, i)).collect();
    (bytes, wide(&read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_rounds_to_nearest_even() {
        for (v, b) in [
            (1.0f32, 0x3c00),
            (1.000_488_3, 0x3c00),
            (1.001_464_8, 0x3c02),
            (-2.0, 0xc000),
            (65504.0, 0x7bff),
            (65520.0, 0x7c00),
        ] {
            assert_eq!(half_bits(v), b, "{v}");
        }
        for bits in (0x0400..0x7c00).chain(0x8400..0xfc00) {
            assert_eq!(half_bits(half_to_f32(bits)), bits);
        }
    }

    /// The text's buffers are the operands, in name and in who may write, then the table of sequences and the parameters.
    #[test]
    fn texts_take_what_the_contract_says() {
        for case in gpu_cases() {
            let (dispatch, name) = (case.dispatch(), case.kernel.name());
            let text = dispatch.text;
            let known = case.kernel.operands().iter().map(|o| o.name.replace('.', "_"));
            let known: Vec<String> = known.chain([crate::SLOTS.to_owned()]).collect();
            for operand in case.kernel.operands() {
                let found = text
                    .buffer(operand.name)
                    .unwrap_or_else(|| panic!("{}: no buffer {}", text.path, operand.name));
                let kind = text
                    .parameters
                    .iter()
                    .find(|p| p.attribute == "buffer" && p.index == found)
                    .unwrap()
                    .kind;
                assert_eq!(
                    !kind.contains("const "),
                    operand.access.writes(),
                    "{}: {} is {kind}",
                    text.path,
                    operand.name
                );
            }
            for p in text.parameters.iter().filter(|p| p.attribute == "buffer" && !p.kind.ends_with('&')) {
                assert!(known.iter().any(|k| k == p.name), "{}: {name} has no operand {}", text.path, p.name);
            }
            assert_eq!(dispatch.constants.len(), text.constants.len(), "{name}");
            assert_eq!(
                text.buffer(crate::SLOTS).is_some(),
                !case.slots.is_empty(),
                "{}: the table of sequences",
                text.path
            );
            assert!(dispatch.threads.iter().product::<usize>() <= 1024, "{name}");
            assert!(dispatch.grid.iter().all(|n| *n > 0), "{name}: {dispatch:?}");
        }
    }
}
