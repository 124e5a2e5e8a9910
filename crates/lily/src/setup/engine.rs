//! A model on a device behind an engine.

use anyhow::{Context, Result};
use lily_engine::{CutMarkers, EngineConfig, LocalEngine};
use lily_model::RunnerOptions;
use lily_model::device::Device as _;
use lily_protocol::Limits;

use super::device::{DECODE_ROWS, choose};
use super::memory::{Budget, readable};
use super::model::LoadedModel;
use crate::cli::{MemoryFlags, ModelFlags};
use crate::terminal::remark;

/// A running engine, and what to say about it.
pub(crate) struct Started {
    pub(crate) engine: LocalEngine,
    /// `CPU, 2 threads, AVX-512`.
    pub(crate) device: String,
    pub(crate) budget: Budget,
}

/// Starts an engine for `parallel` requests at once, with room for `queue` more.
pub(crate) fn start(
    loaded: &LoadedModel,
    flags: &ModelFlags,
    memory: &MemoryFlags,
    parallel: usize,
    queue: usize,
) -> Result<Started> {
    let model = &loaded.model;
    let cache = memory.cache_memory.map(|size| size.0);
    let chosen = choose(flags, model)?;
    let budget = Budget::for_model(model, &chosen, chosen.chunk, memory.context, cache)?;
    let options =
        RunnerOptions { context: budget.context, max_chunk: chosen.chunk, max_decode_rows: DECODE_ROWS };
    let runner = chosen.runner(model, options, budget.state)?;
    let device = chosen.describe(&runner.device().describe());
    let limits = Limits {
        context: budget.context,
        model_context: model.geometry.max_context,
        vocabulary: loaded.text.tokenizer().size(),
    };
    let markers = loaded.text.cut_markers();
    let config = EngineConfig {
        end_tokens: end_tokens(loaded),
        chunk: chosen.chunk,
        cut_markers: CutMarkers {
            end_of_turn: markers.end_of_turn,
            assistant_header: markers.assistant_header,
        },
        parallel,
        queue,
        cache_memory: budget.cache,
        state_memory: budget.state - budget.cache,
        ..EngineConfig::new(limits)
    };
    let engine = lily_engine::start(config, Box::new(runner)).context("the engine did not start")?;
    if budget.shortened {
        remark(format_args!(
            "context: {} tokens, which is what memory allows ({} for states; the model's limit is {}); --context sets it",
            budget.context,
            readable(budget.state),
            model.geometry.max_context
        ));
    }
    Ok(Started { engine, device, budget })
}

/// The union of what config, generation config, tokenizer and template name.
fn end_tokens(loaded: &LoadedModel) -> Vec<u32> {
    let mut ids = loaded.model.end_tokens.clone();
    ids.extend(loaded.text.end_tokens());
    ids.sort_unstable();
    ids.dedup();
    ids
}
