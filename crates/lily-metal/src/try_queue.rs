//! Whether a queue does what it should with memory, words and barriers: fills, copies and a kernel between them, run and compared.

use std::time::Duration;

use lily_kernels::norm::RmsNorm;
use lily_kernels::{Activation, Contract, PlainType};

use crate::alone;
use crate::gpu::{Block, Commands, Fault, Gpu, GpuError, Submitted};
use crate::pipelines::Dialect;

/// How long commands that try a queue are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

const ROWS: usize = 3;
const WIDTH: usize = 64;

/// How far a result may be from the definition, of its size: sums are float32.
const NEAR: f64 = 1e-4;

/// Over two submissions, of which the second reads what the first wrote. What is wrong, if anything is.
pub(crate) fn works<G: Gpu>(gpu: &G, dialect: Dialect) -> Result<(), GpuError> {
    let wrong = |text: &str| GpuError::new(Fault::Commands, text);
    let unknown = || wrong("the kernel of the trial has other operands");
    let kernel = RmsNorm { rows: ROWS, width: WIDTH, eps: 1e-6, weight: PlainType::F32 };
    let dispatch = kernel.dispatch().ok_or_else(unknown)?;
    let numbers = ["x", "w", "out"].map(|name| dispatch.text.buffer(name));
    let [Some(x), Some(weight), Some(out)] = numbers else { return Err(unknown()) };
    let pipeline = alone::pipeline(gpu, dialect, &dispatch, Activation::F32)?;

    let values: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i * 37 % 29) as f32 - 14.0).collect();
    let (bytes, len) = (bytes_of(&values), 4 * values.len());
    let buffer = |bytes: &[u8]| gpu.buffer("a probe", bytes.len(), &mut |to| to.copy_from_slice(bytes));
    let (from, ones) = (buffer(&bytes)?, buffer(&bytes_of(&[1.0; WIDTH]))?);
    let (moved, normed, kept) = (buffer(&vec![0; len])?, buffer(&vec![0; len])?, buffer(&vec![0; 2 * len])?);

    let mut first = gpu.begin("a probe")?;
    first.fill(&moved, 0..len, 0xff);
    first.copy(&from, 0..len, &moved, 0);
    let mut first = first.submit();
    let mut second = gpu.begin("a probe")?;
    let bound = [(x, moved), (weight, ones), (out, normed.clone())];
    alone::launch(&mut second, &pipeline, &dispatch, bound.iter().map(|(number, buffer)| (*number, buffer)));
    second.fill(&kept, 0..len, 0x3c);
    second.copy(&normed, 0..len, &kept, len);
    let mut second = second.submit();
    if first.wait(PATIENCE)?.is_none() || second.wait(PATIENCE)?.is_none() {
        let text = format!("its commands did not end in {} seconds", PATIENCE.as_secs());
        return Err(GpuError::new(Fault::Timeout, text));
    }

    let mut after = vec![0; 2 * len];
    kept.read(0, &mut after);
    let (filled, normed) = after.split_at(len);
    let normed = normed.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b)));
    let x: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
    let want = kernel.reference(&x, &[1.0; WIDTH]);
    let near = |(want, found): (&f64, f64)| (want - found).abs() <= NEAR * want.abs().max(1.0);
    if !filled.iter().all(|byte| *byte == 0x3c) {
        return Err(wrong("what it filled holds something else"));
    }
    if !want.iter().zip(normed).all(near) {
        return Err(wrong("what its kernel wrote and it copied is not what it should be"));
    }
    Ok(())
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
