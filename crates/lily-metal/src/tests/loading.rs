//! Weights, pipelines, memory: what is made before anything runs.

use std::collections::BTreeSet;
use std::sync::Mutex;

use lily_model::device::{Device as _, Layout, Progress, Watch};
use lily_model::plan::{self, DecodeShape};
use lily_model::testing::{pack_checkpoint, write_checkpoint};
use lily_model::{DeviceError, Forward as _, LogitRows};

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

/// The weights of a packed model are used where they are mapped: whole pages, nothing is copied, and the file outlives its model.
#[test]
fn a_packed_model_is_mapped_and_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    write_checkpoint(&from, &Spec::tiny()).unwrap();
    pack_checkpoint(&from, &to).unwrap();
    let told: Arc<Mutex<Vec<usize>>> = Arc::default();
    let heard = told.clone();
    let watch: Watch = Arc::new(move |progress| {
        if let Progress::Loading { bytes, .. } = progress {
            heard.lock().unwrap().push(bytes);
        }
    });
    let options = MetalOptions { watch: Some(watch), ..MetalOptions::new(profile(), DIALECT, 1 << 28) };
    let on = |gpu: &FakeGpu, folder: &std::path::Path| {
        let model = Model::open(folder).unwrap();
        let (weights, packing) = model.weights.packed();
        let made = MetalDevice::new(gpu, &model.geometry, &weights, &model, &packing, &options);
        made.map(|device| (device, model))
    };
    let gpu = FakeGpu::new();
    let (device, model) = on(&gpu, &to).unwrap();
    let (mapped, own) = gpu.mapped_and_own("the weights");
    assert!(own == 0 && mapped as u64 >= model.checkpoint.total_bytes() * 9 / 10, "{mapped}, {own}");
    assert_eq!(gpu.wrongs(), [""; 0]);
    assert_eq!(told.lock().unwrap().last(), Some(&mapped));
    assert!(device.describe().ends_with(", weights mapped"), "{}", device.describe());
    let limits = RunnerOptions { context: 256, max_chunk: 64, max_decode_rows: 1 };
    let weights = model.weights.packed().0;
    let mut runner = Runner::new(model.geometry.clone(), weights, device, limits);
    drop(model);
    let sequence = runner.open().unwrap();
    runner.prefill(sequence, &[1; 20], LogitRows::Last).unwrap();

    // As MLX writes it, and in pages that are not this machine's.
    let gpu = FakeGpu::new();
    let (device, _) = on(&gpu, &from).unwrap();
    assert!(gpu.mapped_and_own("the weights").0 == 0 && !device.describe().contains("mapped"));
    let gpu = FakeGpu::new().with_facts(|facts| facts.page = 1 << 40);
    on(&gpu, &to).unwrap();
    assert!(gpu.mapped_and_own("the weights").0 == 0 && gpu.mapped_and_own("the weights").1 > 0);

    let small = FakeGpu::new().with_facts(|facts| facts.working_set = 100_000);
    let Err(DeviceError::OutOfMemory { what, .. }) = on(&small, &to).map(|_| ()) else {
        panic!("not refused")
    };
    assert!(what == "the weights" && small.mapped_and_own(what) == (0, 0));
}

/// What is no whole page is no buffer over a file.
#[test]
fn a_gpu_of_paper_complains_of_half_pages() {
    let folder = tempfile::tempdir().unwrap();
    write_checkpoint(folder.path(), &Spec::tiny()).unwrap();
    let model = Model::open(folder.path()).unwrap();
    let gpu = FakeGpu::new();
    gpu.map("the weights", &model.checkpoint.mapped(model.weights.final_norm.tensor).unwrap()).unwrap();
    assert!(gpu.wrongs()[0].contains("no whole pages"), "{:?}", gpu.wrongs());
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
