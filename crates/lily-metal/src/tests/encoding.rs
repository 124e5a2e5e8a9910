//! What is told to the GPU is the plan: every launch once, its operands, every barrier, two inputs that take turns.

use std::collections::BTreeMap;

use lily_model::device::{Batch, Choices, Device, Room, hand_over};
use lily_model::plan::{self, Buffer, DecodeShape, Plan, Tail};
use lily_model::synth::Synth;
use lily_model::{LogitRows, Model, Preset, SequenceId, Weights};

use super::*;
use crate::estimate::{MOST_SECONDS, Rates};
use crate::fake::{Recorded, Submission};
use crate::{MOST_IN_FLIGHT, prefill_chunk};

/// The model that all of this is for: its sizes, no bytes.
fn true_size() -> (Model, Weights) {
    let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
    let synth = Synth::new(preset, 0).unwrap();
    let model = Model::random("true size", &synth, &[]);
    let weights = model.weights.packed().0;
    (model, weights)
}

fn hollow_device(gpu: &FakeGpu, model: &Model, profile: &Profile) -> MetalDevice<FakeGpu> {
    let (weights, packing) = model.weights.packed();
    let options = MetalOptions::new(profile.clone(), DIALECT, 2 << 30);
    MetalDevice::new(gpu, &model.geometry, &weights, &Hollow(model), &packing, &options).unwrap()
}

/// Where each buffer of plans was found: number and first byte.
type Found = BTreeMap<Buffer, (u64, usize)>;

/// Holds submissions against the plan that they should be. Returns where its buffers were.
fn assert_is(plan: &Plan, submissions: &[Submission]) -> Found {
    let mut found = Found::new();
    let mut next = 0;
    let starts: Vec<usize> = plan.stages.iter().map(|stage| stage.start).collect();
    for submission in submissions {
        let mut ordered = true;
        for command in &submission.commands {
            match command {
                Recorded::Barrier => {
                    assert!(!ordered && starts.contains(&next), "a barrier in front of launch {next}");
                    ordered = true;
                }
                Recorded::Dispatch { .. } => {
                    assert!(ordered || !starts.contains(&next), "no barrier in front of launch {next}");
                    assert_launch(plan, next, command, &mut found);
                    (next, ordered) = (next + 1, false);
                }
                // Of a new sequence, or the tokens that were chosen.
                Recorded::Fill { .. } | Recorded::Copy { .. } => ordered = true,
            }
        }
    }
    assert_eq!(next, plan.launches.len(), "every launch once");
    assert_apart(plan, &found);
    found
}

fn assert_launch(plan: &Plan, index: usize, command: &Recorded, found: &mut Found) {
    let launch = &plan.launches[index];
    let want = launch.kernel.dispatch().unwrap();
    let Recorded::Dispatch { pipeline, buffers, words, memory, groups, threads } = command else {
        panic!("{command:?}");
    };
    let label = format!("launch {index}, {} ({})", launch.label, launch.kernel.name());
    assert_eq!(pipeline.name, want.text.name, "{label}");
    assert_eq!(pipeline.constants, want.constants, "{label}");
    assert_eq!((*groups, *threads), (want.grid, want.threads), "{label}");
    assert_eq!(memory.iter().map(|m| m.1).collect::<Vec<_>>(), want.threadgroup_bytes, "{label}");
    let by_value = want.text.value_buffer();
    assert_eq!(words.iter().map(|w| (Some(w.0), &w.1)).collect::<Vec<_>>(), [(by_value, &want.params)]);
    let mut numbers: Vec<usize> = buffers.iter().map(|b| b.0).chain(by_value).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..want.text.buffers()).collect::<Vec<_>>(), "{label}");

    let mut views = launch.bindings.iter();
    for operand in launch.kernel.operands() {
        let view = views.next().unwrap();
        if operand.per_slot {
            // All slots share the pool.
            (1..launch.kernel.slots()).for_each(|_| assert!(views.next().is_some()));
        }
        let number = want.text.buffer(operand.name).unwrap();
        let (_, buffer, offset) = buffers.iter().find(|b| b.0 == number).unwrap();
        let start = if operand.per_slot { 0 } else { view.bytes.start };
        let base = offset.checked_sub(start).unwrap();
        let was = *found.entry(view.buffer).or_insert((buffer.number(), base));
        assert_eq!(was, (buffer.number(), base), "{label}: {}", operand.name);
        assert!(operand.per_slot || base + view.bytes.end <= crate::gpu::Block::len(buffer), "{label}");
    }
    if let Some(number) = want.text.buffer(lily_kernels::SLOTS) {
        let (_, buffer, offset) = buffers.iter().find(|b| b.0 == number).unwrap();
        let was = *found.entry(Buffer::Slots).or_insert((buffer.number(), *offset));
        assert_eq!(was, (buffer.number(), *offset), "{label}: slots");
    }
}

/// No two buffers of a plan share a byte.
fn assert_apart(plan: &Plan, found: &Found) {
    let mut ends: BTreeMap<Buffer, usize> = BTreeMap::new();
    for view in plan.launches.iter().flat_map(|l| &l.bindings) {
        let end = ends.entry(view.buffer).or_default();
        *end = (*end).max(view.bytes.end);
    }
    let slot_0 = |buffer: &Buffer| match buffer {
        Buffer::Keys { slot, .. }
        | Buffer::Values { slot, .. }
        | Buffer::DeltaState { slot, .. }
        | Buffer::ConvState { slot, .. } => *slot == 0,
        _ => true,
    };
    let mut ranges: Vec<(u64, usize, usize)> = found
        .iter()
        .filter(|(buffer, _)| slot_0(buffer))
        .map(|(buffer, (number, base))| (*number, *base, base + ends.get(buffer).copied().unwrap_or(1)))
        .collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|w| w[0].0 < w[1].0 || w[0].2 <= w[1].1), "{ranges:?}");
}

/// No submission takes longer than half a second, but a launch that does so by itself.
fn assert_short(plan: &Plan, profile: &Profile, submissions: &[Submission]) {
    let rates = Rates::of(profile);
    let mut launches = plan.launches.iter();
    for submission in submissions {
        let dispatches = submission.commands.iter().filter(|c| matches!(c, Recorded::Dispatch { .. }));
        let seconds: Vec<f64> = dispatches.map(|_| rates.seconds(launches.next().unwrap(), plan)).collect();
        assert!(seconds.len() == 1 || seconds.iter().sum::<f64>() <= MOST_SECONDS, "{seconds:?}");
    }
}

fn sequences(device: &mut MetalDevice<FakeGpu>, count: usize, tokens: usize) -> Vec<SequenceId> {
    let ids: Vec<SequenceId> = (0..count).map(|_| device.open().unwrap()).collect();
    let rooms: Vec<Room> = ids.iter().map(|id| Room { sequence: *id, from: 0, to: tokens }).collect();
    device.reserve(&rooms).unwrap();
    ids
}

#[test]
fn decode_steps_of_true_size_are_the_plan_and_take_turns() {
    let (model, weights) = true_size();
    let (gpu, profile) = (FakeGpu::new(), profile());
    let mut device = hollow_device(&gpu, &model, &profile);
    for slots in [1, 4] {
        let ids = sequences(&mut device, slots, 300);
        let shape = DecodeShape::logits(slots, 4096);
        let plan = plan::decode(target(&model, &weights, &profile), shape).unwrap();
        gpu.take_submissions();
        let mut tokens_at = Vec::new();
        for position in 0..3 {
            let (tokens, positions) = (vec![7; slots], vec![position; slots]);
            let batch = Batch { sequences: &ids, tokens: &tokens, positions: &positions };
            device.run(&plan, &batch).unwrap();
            let submissions = gpu.take_submissions();
            assert_eq!(submissions.len(), 1, "a step is one submission");
            let found = assert_is(&plan, &submissions);
            tokens_at.push(found[&Buffer::Tokens]);
            assert_eq!(found[&Buffer::Tokens].0, found[&Buffer::Slots].0);
            assert_short(&plan, &profile, &submissions);
        }
        assert!(tokens_at[0] != tokens_at[1] && tokens_at[0] == tokens_at[2], "{tokens_at:?}");
        ids.iter().for_each(|id| device.close(*id));
    }
    assert_eq!(gpu.wrongs(), [""; 0]);
    assert!(gpu.most_in_flight() <= MOST_IN_FLIGHT);
}

#[test]
fn steps_of_true_size_that_hand_tokens_over_are_the_plan_with_two_on_their_way() {
    let (model, weights) = true_size();
    let (gpu, profile) = (FakeGpu::new(), profile());
    let mut device = hollow_device(&gpu, &model, &profile);
    let ids = sequences(&mut device, 2, 100);
    let shape = DecodeShape { tail: Tail::Select { entries: 1 }, ..DecodeShape::logits(2, 256) };
    let plan = plan::decode(target(&model, &weights, &profile), shape).unwrap();
    let vocab = model.geometry.vocab;
    let request = lily_kernels::select::Request::greedy(vocab as u32);
    let choices = Choices { requests: vec![request; 2], entries: 1, fresh: Vec::new() };
    let batch = Batch { sequences: &ids, tokens: &[3, 4], positions: &[0, 0] };
    let before = gpu.begun_in_flight().len();
    gpu.take_submissions();
    hand_over(&mut device, &plan, &batch, &choices, 5).unwrap();
    let submissions = gpu.take_submissions();
    assert_eq!(submissions.len(), 5, "a step is one submission");
    let found: Vec<Found> =
        submissions.iter().map(|one| assert_is(&plan, std::slice::from_ref(one))).collect();
    for pair in found.windows(2) {
        for (now, next) in [
            (Buffer::Tokens, Buffer::NextTokens),
            (Buffer::Positions, Buffer::NextPositions),
            (Buffer::Slots, Buffer::NextSlots),
        ] {
            assert_eq!(pair[0][&next], pair[1][&now], "what a step hands over is what the next one reads");
        }
    }
    for (step, submission) in submissions.iter().enumerate() {
        let Some(Recorded::Copy { from, range, at, .. }) = submission.commands.last() else {
            panic!("{:?}", submission.commands.last());
        };
        assert_eq!((from.number(), range, *at), (found[step][&Buffer::Chosen].0, &(0..8), 0));
    }
    assert_eq!(gpu.most_in_flight(), MOST_IN_FLIGHT);
    // The first was begun with the states of new sequences.
    assert_eq!(gpu.begun_in_flight()[before..], [1; 4], "each is written down while another runs");
    assert_eq!(gpu.wrongs(), [""; 0]);
}

/// Chunks of every Mac's own length; the next one is written down while the one before runs.
#[test]
fn prefill_chunks_of_true_size_are_the_plan_in_short_submissions() {
    let (model, weights) = true_size();
    for name in ["metal:m1", "metal:m5-max"] {
        let gpu = FakeGpu::new();
        let profile = Profile::named(name).unwrap();
        let mut device = hollow_device(&gpu, &model, &profile);
        let target = target(&model, &weights, &profile);
        let chunk = prefill_chunk(target, 32_768).unwrap();
        let ids = sequences(&mut device, 1, 3 * chunk);
        gpu.take_submissions();
        let before = gpu.begun_in_flight().len();
        let mut turns = Vec::new();
        for n in 0..3 {
            let logits = if n == 2 { LogitRows::Last } else { LogitRows::None };
            let plan = plan::prefill(target, chunk, 32_768, logits).unwrap();
            let positions: Vec<u32> = (n * chunk..(n + 1) * chunk).map(|p| p as u32).collect();
            let tokens = vec![7; chunk];
            let batch = Batch { sequences: &ids, tokens: &tokens, positions: &positions };
            device.run(&plan, &batch).unwrap();
            let submissions = gpu.take_submissions();
            turns.push(assert_is(&plan, &submissions)[&Buffer::Tokens]);
            assert_short(&plan, &profile, &submissions);
            assert!(name != "metal:m1" || submissions.len() > 1, "{name} takes a chunk in one submission");
        }
        assert!(turns[0] != turns[1] && turns[0] == turns[2]);
        assert_eq!(gpu.most_in_flight(), MOST_IN_FLIGHT, "{name}");
        let begun = gpu.begun_in_flight().split_off(before);
        assert!(begun[1..].iter().all(|n| *n > 0), "{name}: nothing ran while {begun:?} were written down");
        assert_eq!(gpu.wrongs(), [""; 0]);
    }
}

/// No launch of a chunk takes half a second on any Mac that a table knows, and a chunk is not short without need.
#[test]
fn chunks_are_as_long_as_a_mac_can_take() {
    let (model, weights) = true_size();
    let of = |name: &str, context| {
        let profile = Profile::named(name).unwrap();
        prefill_chunk(target(&model, &weights, &profile), context).unwrap()
    };
    assert_eq!(of("metal:m5-max", 4096), 4096);
    assert!(of("metal:m1", 131_072) < of("metal:m1", 4096));
    assert!(of("metal:m1", 131_072) < of("metal:m5-max", 131_072));
    for name in Profile::names().into_iter().filter(|name| name.starts_with("metal:")) {
        let profile = Profile::named(name).unwrap();
        let chunk = of(name, 32_768);
        let plan = plan::prefill(target(&model, &weights, &profile), chunk, 32_768, LogitRows::Last).unwrap();
        assert!(chunk >= 128 && Rates::of(&profile).longest(&plan) <= MOST_SECONDS, "{name}: {chunk}");
    }
}
