//! What a GPU and its system can do, found by trying: never by a name.

use lily_kernels::quant::{Matmul, Output};
use lily_kernels::{Activation, Contract, QuantFormat, bindings, metal_unit};
use lily_model::DeviceError;

use crate::alone;
use crate::gpu::{Gpu, GpuError, Language, QueueKind};
use crate::pipelines::Dialect;
use crate::try_queue;

/// How far products of tensor operations may be from the definition, of the largest: operands are exact, sums are float32.
const NEAR: f64 = 1e-4;

/// The GPU with the newest queue that works, and how texts are compiled for it.
///
/// # Errors
/// Where it takes none of the languages that the kernels are written in.
pub fn probe<G: Gpu>(gpu: &G) -> Result<(G, Dialect), DeviceError> {
    let dialect = dialect(gpu)?;
    let newest = if gpu.facts().is_metal4 { gpu.with_queue(QueueKind::Metal4).ok() } else { None };
    let works = |gpu: &G| try_queue::works(gpu, dialect).unwrap_or(false);
    Ok((newest.filter(works).unwrap_or_else(|| gpu.clone()), dialect))
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
    product(gpu).unwrap_or(false)
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
    use crate::fake::FakeGpu;

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
}
