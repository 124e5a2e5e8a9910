//! Plans made by hand: what is bound, what is poisoned, and that neither the order inside of a stage nor threads change a bit.
#![allow(clippy::unwrap_used)] // failures of a test

use std::ops::Range;
use std::sync::Arc;

use lily_emu::{EmuDevice, EmuOptions};
use lily_kernels::moe::Group;
use lily_kernels::norm::RmsNorm;
use lily_kernels::random::Random;
use lily_kernels::{Activation, PlainType};
use lily_model::device::{Batch, Device, TensorSource};
use lily_model::plan::{Buffer, Launch, Phase, Plan, Profile, Switches, Tail, View, stages};
use lily_model::testing::Spec;
use lily_model::{DeviceError, Packing, TensorId};

const ROWS: usize = 5;
const WIDTH: usize = 96;

/// Tensor 0 holds rows, tensor 1 weights, both f32 and one byte off any alignment, as files have them.
struct Tensors(Vec<u8>, Vec<u8>);

impl TensorSource for Tensors {
    fn bytes(&self, tensor: TensorId) -> &[u8] {
        if tensor.0 == 0 { &self.0[1..] } else { &self.1[1..] }
    }
}

fn inputs() -> (Vec<f32>, Vec<f32>) {
    let random = &mut Random::new(1);
    (random.values(ROWS * WIDTH, 2.0), random.values(WIDTH, 1.0))
}

fn device(activation: Activation, threads: usize, seed: u32) -> EmuDevice {
    let (x, w) = inputs();
    let bytes = |values: &[f32]| [vec![0], PlainType::F32.encode(values)].concat();
    let options = EmuOptions {
        profile: Profile::emulator().with_activation(activation),
        threads: Some(threads),
        seed,
        state_bytes: 1 << 20,
    };
    EmuDevice::new(
        &Spec::tiny().geometry,
        Arc::new(Tensors(bytes(&x), bytes(&w))),
        Packing::default(),
        &options,
    )
    .unwrap()
}

fn view(buffer: Buffer, bytes: Range<usize>) -> View {
    View { buffer, bytes }
}

/// The norm of `rows` rows.
fn norm(rows: usize, x: View, out: View) -> Launch {
    let kernel = RmsNorm { rows, width: WIDTH, eps: 1e-6, weight: PlainType::F32 }.into();
    let w = view(Buffer::Tensor(TensorId(1)), 0..4 * WIDTH);
    Launch { label: "norm", layer: None, kernel, bindings: vec![x, w, out], on_host: false }
}

fn plan(activation: Activation, launches: Vec<Launch>, stages: Vec<Range<usize>>) -> Plan {
    Plan {
        phase: Phase::Prefill,
        activation,
        switches: Switches::ALL,
        slots: 1,
        rows: 1,
        context: 64,
        logit_rows: ROWS,
        tail: Tail::Logits,
        arena_bytes: 4 * ROWS * WIDTH,
        launches,
        stages,
    }
}

fn run(device: &mut EmuDevice, plan: &Plan) -> Result<Vec<f32>, DeviceError> {
    let sequence = device.open().unwrap();
    device.run(plan, &Batch { sequences: &[sequence], tokens: &[0], positions: &[0] })?;
    device.close(sequence);
    let vocab = Spec::tiny().geometry.vocab;
    Ok((0..ROWS).flat_map(|r| device.logits(r).to_vec()).take((ROWS * WIDTH).min(ROWS * vocab)).collect())
}

const fn rows_of_4() -> Range<usize> {
    0..4 * ROWS * WIDTH
}

fn tensor() -> View {
    view(Buffer::Tensor(TensorId(0)), rows_of_4())
}

fn in_order(launches: Vec<Launch>) -> Plan {
    let stages = stages(&launches);
    plan(Activation::F32, launches, stages)
}

/// A float16 that is a normal number; what is smaller is 0.
fn half(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    if rest < 0x400 { 0.0 } else { f32::from_bits(sign | ((rest << 13) + 0x3800_0000)) }
}

#[test]
fn a_launch_meets_its_reference_with_every_type_of_activations() {
    let (x, w) = inputs();
    let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
    let want = RmsNorm { rows: ROWS, width: WIDTH, eps: 1e-6, weight: PlainType::F32 }
        .reference(&wide(&x), &wide(&w));
    for activation in [Activation::F32, Activation::Bf16] {
        let out = view(Buffer::Logits, 0..activation.bytes() * ROWS * WIDTH);
        let one = Plan { activation, ..in_order(vec![norm(ROWS, tensor(), out)]) };
        let got = run(&mut device(activation, 2, 3), &one).unwrap();
        let got: Vec<f32> = match activation {
            Activation::F32 => got,
            _ => {
                got.iter().flat_map(|f| [f.to_bits() as u16, (f.to_bits() >> 16) as u16]).map(half).collect()
            }
        };
        for (got, want) in got.iter().zip(&want) {
            // half stores what is below its smallest normal number with an absolute error
            let error = want.abs() * (activation.fine().rounding() + 1e-5) + 6.2e-5;
            assert!((f64::from(*got) - want).abs() <= error, "{activation:?}: {got}, wanted {want}");
        }
    }
}

#[test]
fn what_nobody_wrote_is_nan() {
    let mut device = device(Activation::F32, 1, 0);
    let (arena, logits) = (view(Buffer::Arena, rows_of_4()), view(Buffer::Logits, rows_of_4()));
    let chain =
        in_order(vec![norm(ROWS, tensor(), arena.clone()), norm(ROWS, arena.clone(), logits.clone())]);
    assert!(run(&mut device, &chain).unwrap().iter().all(|v| v.is_finite()));
    // the arena holds what that run left, and must not show it
    let unwritten = in_order(vec![norm(ROWS, arena, logits)]);
    assert!(run(&mut device, &unwritten).unwrap().iter().all(|v| v.is_nan()));
    // rows that no launch writes
    let half = in_order(vec![norm(2, tensor(), view(Buffer::Logits, 0..4 * 2 * WIDTH))]);
    let got = run(&mut device, &half).unwrap();
    assert!(got[..2 * WIDTH].iter().all(|v| v.is_finite()) && got[2 * WIDTH..].iter().all(|v| v.is_nan()));
}

/// Many rows, one launch each, in one stage.
#[test]
fn orders_and_threads_change_no_bit() {
    let row = |r: usize| 4 * r * WIDTH..4 * (r + 1) * WIDTH;
    let launch = |r| norm(1, view(Buffer::Tensor(TensorId(0)), row(r)), view(Buffer::Logits, row(r)));
    let rows = in_order((0..ROWS).map(launch).collect());
    assert_eq!(rows.stages.len(), 1);
    let whole = in_order(vec![norm(ROWS, tensor(), view(Buffer::Logits, rows_of_4()))]);
    let bits = |values: Vec<f32>| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let want = bits(run(&mut device(Activation::F32, 1, 0), &whole).unwrap());
    for (threads, seed) in [(1, 1), (2, 2), (3, 3), (8, 0)] {
        let mut device = device(Activation::F32, threads, seed);
        for plan in [&rows, &whole] {
            assert!(bits(run(&mut device, plan).unwrap()) == want, "{threads} threads, seed {seed}");
        }
    }
}

/// Two launches of which one needs the other, with the barrier between them taken away.
#[test]
fn a_missing_barrier_shows() {
    let (arena, logits) = (view(Buffer::Arena, rows_of_4()), view(Buffer::Logits, rows_of_4()));
    let launches = vec![norm(ROWS, tensor(), arena.clone()), norm(ROWS, arena, logits)];
    let one_stage = std::iter::once(0..2).collect();
    let broken = plan(Activation::F32, launches, one_stage);
    let finite =
        |seed| run(&mut device(Activation::F32, 1, seed), &broken).unwrap().iter().all(|v| v.is_finite());
    assert!(finite(0), "in the order of the plan it is right");
    assert!((1..20).any(|seed| !finite(seed)), "no seed swaps two launches");
}

#[test]
fn a_plan_that_cannot_run_is_refused() {
    let mut device = device(Activation::F32, 1, 0);
    let failed = |result: Result<Vec<f32>, DeviceError>| match result {
        Err(DeviceError::Failed(text)) => text,
        other => panic!("{other:?}"),
    };
    let arena = |bytes| view(Buffer::Arena, bytes);
    let kernel = Group { rows: 1, experts: 4, top_k: 1 }; // of the CPU device alone
    let bindings = vec![arena(0..4), arena(64..84), arena(128..132), arena(192..200)];
    let group = Launch { label: "group", layer: None, kernel: kernel.into(), bindings, on_host: false };
    let text = failed(run(&mut device, &in_order(vec![group])));
    assert!(text.contains("Group"), "{text}");
    let past = arena(4..4 * ROWS * WIDTH + 4);
    let text = failed(run(&mut device, &in_order(vec![norm(ROWS, tensor(), past)])));
    assert!(text.contains("out") && text.contains("RmsNorm"), "{text}");

    let good = in_order(vec![norm(ROWS, tensor(), view(Buffer::Logits, rows_of_4()))]);
    let sequence = device.open().unwrap();
    for (tokens, positions) in [(vec![0, 0], vec![0]), (vec![u32::MAX], vec![0]), (vec![0], vec![64])] {
        let batch = Batch { sequences: &[sequence], tokens: &tokens, positions: &positions };
        assert!(matches!(device.run(&good, &batch), Err(DeviceError::Unknown(_))));
    }
    device.close(sequence);
    let batch = Batch { sequences: &[sequence], tokens: &[0], positions: &[0] };
    assert!(matches!(device.run(&good, &batch), Err(DeviceError::Unknown(_))), "a closed sequence");
}
