//! Weights, pipelines, memory: what is made before anything runs.

use std::collections::BTreeSet;
use std::sync::Mutex;

use lily_model::device::{Layout, Progress, Watch};
use lily_model::plan::{self, DecodeShape};
use lily_model::{DeviceError, LogitRows};

use super::*;
use crate::gpu::{Block, Gpu};
use crate::load::load;

/// Remembers what was given back.
struct Watched<'a>(&'a Model, Mutex<Vec<(TensorId, std::ops::Range<usize>)>>);

impl TensorSource for Watched<'_> {
    fn bytes(&self, tensor: TensorId) -> &[u8] {
        TensorSource::bytes(self.0, tensor)
    }

    fn release(&self, tensor: TensorId, range: std::ops::Range<usize>) {
        self.1.lock().unwrap().push((tensor, range));
    }
}

#[test]
fn weights_stand_in_several_buffers_and_what_was_read_is_given_back() {
    let (gpu, model, profile) = (FakeGpu::new(), tiny(), profile());
    let (weights, packing) = model.weights.packed();
    let layout = Layout::new(target(&model, &weights, &profile), &*model, &packing, 20_000).unwrap();
    let source = Watched(&model, Mutex::default());
    let told: Arc<Mutex<Vec<usize>>> = Arc::default();
    let heard = told.clone();
    let watch: Watch = Arc::new(move |progress| {
        let Progress::Loading { bytes, .. } = progress else { panic!("{progress:?}") };
        heard.lock().unwrap().push(bytes);
    });
    let blocks = load(&gpu, &layout, &source, Some(&watch)).unwrap();
    assert!(blocks.len() > 3);
    let pieces = layout.pieces(usize::MAX);
    for piece in &pieces {
        let mut found = vec![0; piece.bytes];
        blocks[piece.block].read(piece.to, &mut found);
        assert_eq!(found, model.checkpoint.bytes(piece.tensor));
    }
    let mut given_back = source.1.into_inner().unwrap();
    given_back.sort_by_key(|(tensor, _)| tensor.0);
    let mut read: Vec<_> = pieces.iter().map(|p| (p.tensor, p.from..p.from + p.bytes)).collect();
    read.sort_by_key(|(tensor, _)| tensor.0);
    assert_eq!(given_back, read);
    let total: usize = pieces.iter().map(|p| p.bytes).sum();
    assert_eq!(told.lock().unwrap().iter().max(), Some(&total));
}

/// Nothing is allocated where the whole does not fit, and nothing beyond what the system allows later on.
#[test]
fn memory_beyond_the_working_set_is_refused_before_it_is_allocated() {
    let model = tiny();
    let (weights, packing) = model.weights.packed();
    let options = MetalOptions::new(profile(), DIALECT, 1 << 28);
    let small = FakeGpu::new().with_facts(|facts| facts.working_set = 100_000);
    let made = MetalDevice::new(&small, &model.geometry, &weights, &*model, &packing, &options);
    let Err(DeviceError::OutOfMemory { what, need_bytes, left_bytes }) = made.map(|_| ()) else {
        panic!("it was not refused");
    };
    assert_eq!((what, left_bytes), ("the weights", 100_000));
    assert!(need_bytes > 100_000 && small.allocated() == 0);

    let need = model.checkpoint.total_bytes() as usize;
    let tight = FakeGpu::new().with_facts(|facts| facts.working_set = need + (64 << 10));
    let mut runner = runner(&tight, &model);
    use lily_model::Forward as _;
    let mut ended = false;
    for _ in 0..1000 {
        let Ok(id) = runner.open() else {
            ended = true;
            break;
        };
        if runner.prefill(id, &[1; 200], LogitRows::Last).is_err() {
            ended = true;
            break;
        }
    }
    assert!(ended && tight.allocated() <= need + (64 << 10));
}

#[test]
fn pipelines_are_made_once_each_and_kept() {
    let (gpu, model, profile) = (FakeGpu::new(), tiny(), profile());
    let weights = model.weights.packed().0;
    let told: Arc<Mutex<BTreeSet<usize>>> = Arc::default();
    let heard = told.clone();
    let watch: Watch = Arc::new(move |progress| {
        if let Progress::Compiling { done, .. } = progress {
            heard.lock().unwrap().insert(done);
        }
    });
    let options = MetalOptions { watch: Some(watch), ..MetalOptions::new(profile.clone(), DIALECT, 1 << 28) };
    let packing = model.weights.packed().1;
    let mut device = MetalDevice::new(&gpu, &model.geometry, &weights, &*model, &packing, &options).unwrap();
    let target = target(&model, &weights, &profile);
    let plans = [
        plan::prefill(target, 70, 256, LogitRows::Last).unwrap(),
        plan::decode(target, DecodeShape::logits(1, 256)).unwrap(),
    ];
    device.load(&plans).unwrap();
    let (libraries, pipelines) = gpu.compiled();
    assert!(libraries > 5 && pipelines >= libraries);
    assert_eq!(told.lock().unwrap().len(), libraries + pipelines);
    device.load(&plans).unwrap();
    assert_eq!(gpu.compiled(), (libraries, pipelines));
    let (resident, kept) = gpu.kept();
    assert!(resident >= 1 && kept == 1);
}

#[test]
fn a_text_that_does_not_compile_is_named_with_the_compilers_words() {
    let (gpu, model) = (FakeGpu::new(), tiny());
    gpu.fail(|faults| faults.source = Some("kernel void norm_matmul("));
    let profile = profile();
    let weights = model.weights.packed().0;
    let mut device = device(&gpu, &model, profile.clone());
    let plan = plan::decode(target(&model, &weights, &profile), DecodeShape::logits(1, 256)).unwrap();
    let refused = device.load(std::slice::from_ref(&plan)).unwrap_err().to_string();
    for words in ["norm_matmul.metal", "Metal 3.1", "bf16", "program_source:7:1: error: of paper"] {
        assert!(refused.contains(words), "{refused}");
    }
    gpu.fail(|faults| *faults = crate::fake::Faults { threads: 31, ..Default::default() });
    let refused = device.load(std::slice::from_ref(&plan)).unwrap_err().to_string();
    assert!(refused.contains("threads, and its registers allow 31"), "{refused}");
}
