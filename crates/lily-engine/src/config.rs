//! What an engine is started with.

use lily_model::Forward;
use lily_protocol::Limits;

use crate::cuts::CutMarkers;

/// How an engine works; [`EngineConfig::new`] and then set what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// What is served. `vocabulary` is the tokenizer's size: ids at or above it are neither accepted nor chosen.
    pub limits: Limits,
    /// Each of these ends an answer: the union of what config, generation config and template name.
    pub end_tokens: Vec<u32>,
    /// Tokens of a prefill chunk: every multiple of it is a cut. At least 1, at most [`Forward::max_chunk`]. Results
    /// depend on it (rounding), so it belongs to the model's profile and not to the moment's load.
    pub chunk: usize,
    /// Where else prefill is cut.
    pub cut_markers: CutMarkers,
    /// Requests worked on at the same time, each with a live sequence. At least 1.
    pub parallel: usize,
    /// Requests that may wait for one of those places; more are refused. (The bound is on `parallel + queue` requests
    /// taken, whoever of them has started: short memory may let fewer start.)
    pub queue: usize,
    /// Bytes that the prefix cache may hold; 0 turns reuse off.
    pub cache_memory: usize,
    /// Bytes that live sequences may hold together before further requests have to wait. One request alone is always
    /// tried, whatever its size: then the device's own limit decides. Live sequences may take the cache's bytes too
    /// (the cache gives way); beyond both budgets the youngest request is put back into the queue.
    pub state_memory: usize,
}

impl EngineConfig {
    /// 512 tokens a chunk, 4 requests at once, 64 waiting, no cache, no limit of live state, no end tokens or markers.
    pub fn new(limits: Limits) -> Self {
        EngineConfig {
            limits,
            end_tokens: Vec::new(),
            chunk: 512,
            cut_markers: CutMarkers::default(),
            parallel: 4,
            queue: 64,
            cache_memory: 0,
            state_memory: usize::MAX,
        }
    }

    /// Refuses a configuration that cannot work with this model.
    pub(crate) fn check(&self, forward: &dyn Forward) -> Result<(), StartError> {
        let (most, rows) = (forward.max_chunk(), forward.vocab());
        if self.chunk == 0 || self.chunk > most {
            return Err(StartError::Chunk { chunk: self.chunk, most });
        }
        if self.parallel == 0 {
            return Err(StartError::Parallel);
        }
        if self.limits.vocabulary == 0 || self.limits.vocabulary > rows {
            return Err(StartError::Vocabulary { tokenizer: self.limits.vocabulary, rows });
        }
        if self.limits.context < 2 || self.limits.context > self.limits.model_context {
            return Err(StartError::Context { asked: self.limits.context, model: self.limits.model_context });
        }
        Ok(())
    }
}

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The chunk is not what the model takes in one call.
    #[error("a prefill chunk of {chunk} tokens is not possible: the device takes 1 to {most} tokens at once")]
    Chunk {
        /// The chunk asked for.
        chunk: usize,
        /// The device's limit.
        most: usize,
    },
    /// No place to work.
    #[error("0 parallel requests cannot serve anyone: at least 1 is needed")]
    Parallel,
    /// Tokenizer and model do not belong together.
    #[error(
        "the tokenizer has {tokenizer} tokens and the model {rows} rows of logits; the tokenizer must have at least 1 \
         token and no more than the model: use the tokenizer that came with the checkpoint"
    )]
    Vocabulary {
        /// The tokenizer's size.
        tokenizer: usize,
        /// The model's padded vocabulary.
        rows: usize,
    },
    /// A window that cannot be served.
    #[error("a context of {asked} tokens is not possible: this model serves 2 to {model} tokens")]
    Context {
        /// The window asked for.
        asked: usize,
        /// The model's limit.
        model: usize,
    },
    /// The operating system gave no thread.
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}
