//! What an answer took, by the clock of the server: an engine's own figures are lost where a stop string ends an answer.

use std::time::Instant;

use serde::Serialize;

use crate::answer::Figures;

/// Seconds of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// From the request's being taken to the start of its prompt.
    pub(crate) queue: f64,
    /// On the prompt, to the first token.
    pub(crate) prefill: f64,
    /// From the first token to the end.
    pub(crate) decode: f64,
}

/// Takes them.
#[derive(Debug)]
pub(crate) struct Clock {
    taken: Instant,
    begun: Option<Instant>,
    spoke: Option<Instant>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Clock { taken: Instant::now(), begun: None, spoke: None }
    }

    /// Work on the prompt; returns the milliseconds since the request was taken.
    pub(crate) fn prefill(&mut self) -> f64 {
        let now = Instant::now();
        self.begun.get_or_insert(now);
        (now - self.taken).as_secs_f64() * 1e3
    }

    /// Tokens came.
    pub(crate) fn token(&mut self) {
        self.spoke.get_or_insert_with(Instant::now);
    }

    /// At the end.
    pub(crate) fn times(&self) -> Times {
        let now = Instant::now();
        let begun = self.begun.unwrap_or(self.taken);
        let spoke = self.spoke.unwrap_or(now);
        Times {
            queue: (begun - self.taken).as_secs_f64(),
            prefill: (spoke - begun).as_secs_f64(),
            decode: (now - spoke).as_secs_f64(),
        }
    }
}

/// `timings` of an answer, under the names of llama.cpp's server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Timings {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

impl Timings {
    pub(crate) fn of(figures: &Figures) -> Self {
        let prompt_n = figures.prompt_tokens.saturating_sub(figures.cached_tokens);
        let (prompt_ms, predicted_ms) = (figures.times.prefill * 1e3, figures.times.decode * 1e3);
        Timings {
            cache_n: figures.cached_tokens,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n),
            prompt_per_second: rate(prompt_n, prompt_ms),
            predicted_n: figures.completion_tokens,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, figures.completion_tokens),
            predicted_per_second: rate(figures.completion_tokens, predicted_ms),
        }
    }
}

/// 0 where there is nothing to divide by: JSON has no infinity.
fn ratio(milliseconds: f64, count: usize) -> f64 {
    if count == 0 { 0.0 } else { milliseconds / count as f64 }
}

fn rate(count: usize, milliseconds: f64) -> f64 {
    if milliseconds <= 0.0 { 0.0 } else { count as f64 * 1e3 / milliseconds }
}
