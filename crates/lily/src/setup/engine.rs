//! A model on a device behind an engine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lily_engine::{CutMarkers, EngineConfig, LocalEngine, Renewal};
use lily_model::device::{Device as _, Trace};
use lily_model::{Forward, Geometry, Model, RunnerOptions};
use lily_protocol::Limits;

use super::device::{DECODE_ROWS, choose};
use super::memory::{Budget, readable, sequence_bytes};
use super::model::{LoadedModel, WeightSource};
use crate::cli::{MemoryFlags, ModelFlags, TraceFlags};
use crate::terminal::remark;

/// Requests at once where nobody says how many.
const DEFAULT_PARALLEL: usize = 4;

/// A running engine, and what to say about it.
pub(crate) struct Started {
    pub(crate) engine: LocalEngine,
    /// `CPU, 2 threads, AVX-512`.
    pub(crate) device: String,
    pub(crate) budget: Budget,
    /// Requests answered at once.
    pub(crate) parallel: usize,
}

/// How many requests an engine is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Answered at once; `None`: [`DEFAULT_PARALLEL`], or as many as there is memory for.
    pub(crate) parallel: Option<usize>,
    /// That may wait.
    pub(crate) queue: usize,
    /// Time without one after which the model is let go.
    pub(crate) idle_unload: Option<Duration>,
}

impl Places {
    /// One, and none that waits.
    pub(crate) const ONE: Places = Places { parallel: Some(1), queue: 0, idle_unload: None };
}

/// Starts an engine.
pub(crate) fn start(
    loaded: &LoadedModel,
    flags: &ModelFlags,
    memory: &MemoryFlags,
    trace: &TraceFlags,
    places: Places,
) -> Result<Started> {
    let model = &loaded.model;
    let cache = memory.cache_memory.map(|size| size.0);
    let chosen = choose(flags, model)?.traced(trace)?;
    let budget = Budget::for_model(model, &chosen, chosen.chunk, memory.context, cache)?;
    let short = sequence_bytes(&model.geometry, &chosen.profile, budget.context.min(chosen.chunk));
    let parallel = parallel(places.parallel, (budget.state / short).max(1))?;
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
        queue: places.queue,
        cache_memory: budget.cache,
        state_memory: budget.state - budget.cache,
        ..EngineConfig::new(limits)
    };
    let again = Again {
        source: loaded.source.clone(),
        flags: flags.clone(),
        geometry: model.geometry.clone(),
        options,
        profile: chosen.profile.name,
        chunk: chosen.chunk,
        state: budget.state,
        trace: chosen.trace.clone(),
    };
    let make = Box::new(move || again.make().map_err(|error| format!("{error:#}")));
    let renewal = Renewal { idle: places.idle_unload, make };
    let engine = lily_engine::start_with(config, Box::new(runner), Some(renewal))
        .context("the engine did not start")?;
    if budget.shortened {
        remark(format_args!(
            "context: {} tokens, which is what memory allows ({} for states; the model's limit is {}); --context sets it",
            budget.context,
            readable(budget.state),
            model.geometry.max_context
        ));
    }
    Ok(Started { engine, device, budget, parallel })
}

/// Requests at once: what was asked for, if memory holds the states of so many sequences of a chunk.
fn parallel(asked: Option<usize>, sequences: usize) -> Result<usize> {
    let Some(asked) = asked else { return Ok(DEFAULT_PARALLEL.min(sequences)) };
    ensure!(
        asked <= sequences,
        "--parallel is {asked}, and the memory left beside the model holds the states of {sequences} short conversations: \
         wanted at most --parallel {sequences}"
    );
    Ok(asked)
}

/// What it takes to have the same model again.
struct Again {
    source: WeightSource,
    flags: ModelFlags,
    geometry: Geometry,
    options: RunnerOptions,
    /// The device's, by name.
    profile: &'static str,
    chunk: usize,
    state: usize,
    /// The one that was begun: what comes is written behind it.
    trace: Option<Trace>,
}

impl Again {
    fn make(&self) -> Result<Box<dyn Forward>> {
        let model: Arc<Model> = Arc::new(self.source.open()?);
        ensure!(
            model.geometry == self.geometry,
            "its files are those of another model now: start the server again"
        );
        let mut chosen = choose(&self.flags, &model)?;
        chosen.trace = self.trace.clone();
        ensure!(
            chosen.profile.name == self.profile && chosen.chunk == self.chunk,
            "the device is another one now ({}, and was {}){}, whose results would differ: start the server again",
            chosen.profile.name,
            self.profile,
            chosen.no_gpu().map_or_else(String::new, |why| format!(" because of this: {why}"))
        );
        Ok(Box::new(chosen.runner(&model, self.options, self.state)?))
    }
}

/// The union of what config, generation config, tokenizer and template name.
fn end_tokens(loaded: &LoadedModel) -> Vec<u32> {
    let mut ids = loaded.model.end_tokens.clone();
    ids.extend(loaded.text.end_tokens());
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_at_once_are_bounded_by_memory() {
        assert_eq!(parallel(None, 100).unwrap(), DEFAULT_PARALLEL);
        assert_eq!(parallel(None, 2).unwrap(), 2);
        assert_eq!(parallel(Some(2), 2).unwrap(), 2);
        let refused = parallel(Some(9), 2).unwrap_err().to_string();
        assert!(refused.contains("--parallel is 9") && refused.contains("at most --parallel 2"), "{refused}");
    }
}
