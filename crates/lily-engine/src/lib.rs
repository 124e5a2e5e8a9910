//! The generation engine: requests in, tokens out, over any model that implements [`lily_model::Forward`].
//!
//! One thread owns the model. Requests reach it through a channel and take turns: after every prefill turn and every
//! decode step the engine may switch, so a short request never waits for a long prefill. It knows token ids and
//! logits; it knows no text, no tensor and no device.
//!
//! | file | idea |
//! |---|---|
//! | `engine.rs` | the handle: checks of a request, the queue's bound, shutting down |
//! | `renewal.rs` | the thread: work with a model, time without one, and the next one |
//! | `worker.rs` | work with a model: receive, admit, act, finish |
//! | `worker/decode.rs` | a turn of decode, and who chooses its tokens |
//! | `worker/ahead.rs` | steps whose tokens the device chooses, the next one under way while the last is told |
//! | `turns.rs` | the policy: whose turn is next |
//! | `sessions.rs` | sequences and snapshots of the model, under a memory budget |
//! | `cuts.rs` | where prefill is cut: a pure function of the token ids |
//! | `keep.rs` | which cuts of a prompt are worth a snapshot |
//! | `prefix_cache.rs` | the tree from prompt prefixes to snapshots, and eviction |
//! | `task.rs` | one request at work |
//! | `scores.rs` | log probabilities of prompts |
//! | `sampler/` | logits in, token out |
//!
//! What holds everywhere: a request's tokens depend on the request alone. Not on what ran before (reuse starts only at
//! cuts, where a fresh run cuts too), not on what runs beside (rows of a decode are independent), not on memory
//! pressure (a preempted request repeats its prefill and its own tokens step by step, with the same bits). Whether the device or the
//! host chooses the tokens behind the first is decided by the request and the device.
#![forbid(unsafe_code)]

mod config;
mod cuts;
mod engine;
mod keep;
mod prefix_cache;
mod renewal;
mod sampler;
mod scores;
mod sessions;
mod task;
mod turns;
mod worker;

pub use config::{EngineConfig, StartError};
pub use cuts::{Cut, CutKind, CutMarkers, CutRule};
pub use engine::{LocalEngine, start, start_with};
pub use renewal::Renewal;
pub use sampler::{Philox, Sampler, SamplerError, SamplingError, Scratch, logprobs};
