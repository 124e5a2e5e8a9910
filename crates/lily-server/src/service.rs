//! What is served: an engine, the text side of its model, and the defaults of its answers.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lily_protocol::{Engine, Sampling};
use lily_text::TextModel;

use crate::errors::{ApiError, Kind};
use crate::metrics::Metrics;

/// A model that answers. [`Service::new`] and then set what differs.
#[derive(Clone)]
pub struct Service {
    /// Continues prompts.
    pub engine: Arc<dyn Engine>,
    /// Tokenizer and template of the same model.
    pub text: Arc<TextModel>,
    /// The name in `/v1/models` and in every answer.
    pub model_name: String,
    /// Further names; with `strict_model` these are served too.
    pub aliases: Vec<String>,
    /// What a request that says nothing gets: the checkpoint's `generation_config.json`. Its seed and bias are not used.
    pub sampling: Sampling,
    /// The seed of a request that brings none; `None` draws a random one.
    pub seed: Option<u64>,
    /// Answer 404 to a request for any other model. Otherwise every name is served.
    pub strict_model: bool,
    /// An answer that is not complete after this time ends with an error.
    pub request_timeout: Option<Duration>,
    /// Requests that the engine answers at the same time: `total_slots` in `/props`.
    pub parallel: usize,
    /// Unix seconds at which the service was made: `created` in `/v1/models`.
    pub created: u64,
    pub(crate) metrics: Arc<Metrics>,
}

impl Service {
    /// Serves every name, greedily unless a request says otherwise.
    pub fn new(engine: Arc<dyn Engine>, text: Arc<TextModel>, model_name: impl Into<String>) -> Self {
        Service {
            engine,
            text,
            model_name: model_name.into(),
            aliases: Vec::new(),
            sampling: Sampling::greedy(),
            seed: None,
            strict_model: false,
            request_timeout: None,
            parallel: 1,
            created: unix_seconds(),
            metrics: Arc::default(),
        }
    }

    /// Each once.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let new = |at: usize, name: &String| *name != self.model_name && !self.aliases[..at].contains(name);
        let aliases = self.aliases.iter().enumerate().filter(move |&(at, name)| new(at, name));
        std::iter::once(self.model_name.as_str()).chain(aliases.map(|(_, name)| name.as_str()))
    }

    /// 404 for a name that is not this model's.
    pub(crate) fn require_name(&self, name: &str) -> Result<(), ApiError> {
        if self.names().any(|own| own == name) {
            return Ok(());
        }
        let message = format!("the model {name:?} is not served here; {:?} is", self.model_name);
        Err(Kind::ModelNotFound.error(message).at("model"))
    }
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
