//! What a GPU and its system can do, found by trying: never by a name.

use lily_kernels::quant::{Matmul, Output};
use lily_kernels::{Activation, Contract, QuantFormat, bindings, metal_unit};
use lily_model::DeviceError;

use crate::alone;
use crate::gpu::{Fault, Gpu, GpuError, Language, QueueKind};
use crate::pipelines::Dialect;
use crate::try_queue;

/// How far products of tensor operations may be from the definition, of the largest: operands are exact, sums are float32.
const NEAR: f64 = 1e-4;

/// Which queue commands are to go through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueChoice {
    /// The newest that works.
    #[default]
    Auto,
    /// This one; no other is tried.
    Only(QueueKind),
}

/// What a probe has found.
#[derive(Clone)]
pub struct Probed<G> {
    /// The GPU with its queue.
    pub gpu: G,
    /// How texts are compiled for it.
    pub dialect: Dialect,
    /// What a queue of Metal 4 did wrong, where the GPU says that it has them and one was tried.
    pub refused: Option<String>,
}

/// The GPU with the queue that was chosen, and how texts are compiled for it.
///
/// # Errors
/// Where it takes none of the languages that the kernels are written in, or where only a queue will do that does not work.
pub fn probe<G: Gpu>(gpu: &G, choice: QueueChoice) -> Result<Probed<G>, DeviceError> {
    let dialect = dialect(gpu)?;
    let classic = |refused| Ok(Probed { gpu: gpu.clone(), dialect, refused });
    if choice == QueueChoice::Only(QueueKind::Classic) {
        return classic(None);
    }
    let only = choice == QueueChoice::Only(QueueKind::Metal4);
    let facts = gpu.facts();
    if !facts.is_metal4 && !only {
        return classic(None);
    }
    let tried = match facts.is_metal4 {
        // An exception must not leave here; what it was thrown through goes inside, too.
        true => gpu.guarded(|| {
            let gpu = gpu.with_queue(QueueKind::Metal4)?;
            try_queue::works(&gpu, dialect).map(|()| gpu)
        }),
        false => Err(GpuError::new(Fault::Commands, format!("{} has none for this GPU", facts.system))),
    };
    match tried {
        Ok(gpu) => Ok(Probed { gpu, dialect, refused: None }),
        Err(error) if only => {
            let text = format!("no queue of Metal 4 on {} ({}): {error}", facts.name, facts.system);
            Err(DeviceError::Failed(text))
        }
        Err(error) => classic(Some(error.to_string())),
    }
}

/// The newest language that the system takes, and whether tensor operations give what they should.
///
/// # Errors
/// Where it takes none of the languages that the kernels are written in.
pub fn dialect<G: Gpu>(gpu: &G) -> Result<Dialect, DeviceError> {
    let probe = metal_unit(&bindings::rms_norm::TEXT, Activation::Bf16, false);
    let mut refused = String::new();
    for language in Language::ALL {
        match gpu.library(&probe, language) {
            Ok(_) => {
                let tensors = gpu.facts().is_metal4 && language == Language::V4_0 && tensors(gpu);
                return Ok(Dialect { language, tensors });
            }
            Err(error) => refused = format!("Metal {}: {error}", language.name()),
        }
    }
    let system = &gpu.facts().system;
    Err(DeviceError::Failed(format!("{system} compiles no kernel; wanted macOS 14 or later ({refused})")))
}

/// Whether a product by tensor operations is the one of the definition: compiled, run and compared.
pub(crate) fn tensors<G: Gpu>(gpu: &G) -> bool {
    // One that the compiler does not take is an answer, too.
    gpu.guarded(|| product(gpu)).unwrap_or(false)
}

fn product<G: Gpu>(gpu: &G) -> Result<bool, GpuError> {
    let format = QuantFormat { bits: 4, group: 64 };
    let (rows, outputs, inputs) = (33, 70, 192);
    let kernel = Matmul::new(rows, outputs, inputs, format, Output::F32);
    let Some(dispatch) = kernel.dispatch() else { return Ok(false) };
    // Eighths, which float16 holds, and scales of powers of two.
    let x: Vec<f64> = (0..rows * inputs).map(|i| f64::from((i * 37 % 29) as i32 - 14) / 8.0).collect();
    let weight: Vec<u8> = (0..outputs * inputs / 2).map(|i| (i * 73 % 251) as u8).collect();
    let scale = |i: usize| [0x3d80u16, 0x3e00, 0x3d00][i % 3].to_le_bytes();
    let scales: Vec<u8> = (0..outputs * inputs / 64).flat_map(scale).collect();
    let biases: Vec<u8> =
        (0..outputs * inputs / 64).flat_map(|i| [0xbf00u16, 0xbe80][i % 2].to_le_bytes()).collect();
    let want = kernel.reference(&x, &weight, &scales, &biases, &[]);
    let halves: Vec<u8> = x.iter().flat_map(|v| half(*v).to_le_bytes()).collect();

    let number = |name| dispatch.text.buffer(name);
    let out = vec![0xff; 4 * rows * outputs];
    let named =
        [("x", &halves), ("weight", &weight), ("scales", &scales), ("biases", &biases), ("out", &out)];
    let buffers: Option<Vec<(usize, &[u8])>> =
        named.iter().map(|(name, bytes)| Some((number(name)?, &bytes[..]))).collect();
    let Some(buffers) = buffers else { return Ok(false) };
    let dialect = Dialect { language: Language::V4_0, tensors: true };
    let after = alone::run(gpu, dialect, &dispatch, Activation::F16, &buffers)?;
    let Some(found) = after.last() else { return Ok(false) };
    let found = found.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b)));
    let largest = want.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    Ok(largest > 0.0 && want.iter().zip(found).all(|(want, found)| (want - found).abs() <= NEAR * largest))
}

/// float16 of a number that it holds exactly and that is not subnormal.
fn half(x: f64) -> u16 {
    let bits = (x as f32).to_bits();
    if x == 0.0 {
        return 0;
    }
    let (sign, exponent, mantissa) = (bits >> 31, (bits >> 23 & 0xff) + 15 - 127, bits >> 13 & 0x3ff);
    (sign << 15 | exponent << 10 | mantissa) as u16
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;
    use crate::fake::{FakeGpu, Metal4Fault};

    #[test]
    fn the_newest_language_that_compiles_is_taken() {
        let gpu = FakeGpu::new();
        assert_eq!(dialect(&gpu).unwrap(), Dialect { language: Language::V4_0, tensors: false });
        gpu.fail(|faults| faults.unknown = vec![Language::V4_0, Language::V3_2]);
        assert_eq!(dialect(&gpu).unwrap().language, Language::V3_1);
        gpu.fail(|faults| faults.unknown = Language::ALL.to_vec());
        let refused = dialect(&gpu).unwrap_err().to_string();
        assert!(refused.contains("macOS 14") && refused.contains("Metal 3.1"), "{refused}");
    }

    /// A GPU of paper leaves what was there, as one might whose tensor operations are broken.
    #[test]
    fn tensor_operations_that_give_something_else_are_not_used() {
        let gpu = FakeGpu::new().with_facts(|facts| facts.is_metal4 = true);
        assert!(!dialect(&gpu).unwrap().tensors);
        assert_eq!(gpu.submissions(), 1, "they were tried");
    }

    /// A queue that works is seen where somebody runs what is recorded (`crates/lily-emu/examples/metal`).
    #[test]
    fn a_queue_that_is_refused_leaves_the_classic_one_and_says_why() {
        for (fault, wanted) in [
            (None, "what it filled"),
            (Some(Metal4Fault::Missing), "no queue of paper"),
            (Some(Metal4Fault::Wrong), "what it filled"),
            (Some(Metal4Fault::Stuck), "10 seconds"),
            (Some(Metal4Fault::ThrowsWhenMade), "an exception of paper"),
            (Some(Metal4Fault::ThrowsWhenUsed), "an exception of paper"),
        ] {
            let gpu = FakeGpu::new().with_facts(|facts| facts.is_metal4 = true);
            gpu.fail(|faults| faults.metal4 = fault);
            let probed = probe(&gpu, QueueChoice::Auto).unwrap();
            assert_eq!(probed.gpu.queue_kind(), QueueKind::Classic, "{fault:?}");
            assert!(probed.refused.as_ref().is_some_and(|why| why.contains(wanted)), "{:?}", probed.refused);
            let refused = probe(&gpu, QueueChoice::Only(QueueKind::Metal4)).err().unwrap().to_string();
            assert!(refused.contains(wanted) && refused.contains("queue of Metal 4"), "{refused}");
        }
    }

    #[test]
    fn a_queue_that_nobody_asked_for_is_not_tried() {
        let gpu = FakeGpu::new().with_facts(|facts| facts.is_metal4 = true);
        gpu.fail(|faults| faults.metal4 = Some(Metal4Fault::ThrowsWhenMade));
        let probed = probe(&gpu, QueueChoice::Only(QueueKind::Classic)).unwrap();
        assert_eq!((probed.gpu.queue_kind(), probed.refused), (QueueKind::Classic, None));
        let gpu = FakeGpu::new();
        assert_eq!(probe(&gpu, QueueChoice::Auto).unwrap().refused, None, "it says that it has none");
        let refused = probe(&gpu, QueueChoice::Only(QueueKind::Metal4)).err().unwrap().to_string();
        assert!(refused.contains("macOS of paper has none"), "{refused}");
    }
}
