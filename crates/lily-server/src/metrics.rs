//! `GET /metrics`: counts and times since the start, in Prometheus' text format, under the names that dashboards for
//! llama.cpp's server and vLLM ask for. Nothing in them says what was asked or answered.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use lily_protocol::{FinishReason, Load};

use crate::answer::{Ending, Figures};

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 14] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Counters that only grow.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    stopped: AtomicU64,
    limited: AtomicU64,
    called: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    prefill: Seconds,
    decode: Seconds,
    queue_times: Histogram,
    first_token_times: Histogram,
    request_times: Histogram,
}

/// A sum of seconds, kept in microseconds.
#[derive(Debug, Default)]
struct Seconds(AtomicU64);

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    sum: Seconds,
}

impl Seconds {
    fn add(&self, seconds: f64) {
        self.0.fetch_add((seconds * 1e6) as u64, Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e6
    }
}

impl Histogram {
    fn add(&self, seconds: f64) {
        if let Some(at) = BOUNDS.iter().position(|&bound| seconds <= bound) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.add(seconds);
    }
}

impl Metrics {
    /// An answer ended by itself, by a stop string or by its one call.
    pub(crate) fn ended(&self, ending: &Ending) {
        let counter = match ending.reason {
            FinishReason::Length => &self.limited,
            FinishReason::Stop if ending.calls > 0 => &self.called,
            FinishReason::Stop => &self.stopped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.figures(&ending.figures);
    }

    /// The engine gave up on an answer.
    pub(crate) fn failed(&self, figures: &Figures) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.figures(figures);
    }

    /// The client went away.
    pub(crate) fn cancelled(&self, figures: &Figures) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
        self.figures(figures);
    }

    fn figures(&self, figures: &Figures) {
        let times = &figures.times;
        for (counter, count) in [
            (&self.prompt_tokens, figures.prompt_tokens),
            (&self.cached_tokens, figures.cached_tokens),
            (&self.completion_tokens, figures.completion_tokens),
        ] {
            counter.fetch_add(count as u64, Ordering::Relaxed);
        }
        self.prefill.add(times.prefill);
        self.decode.add(times.decode);
        self.queue_times.add(times.queue);
        self.first_token_times.add(times.queue + times.prefill);
        self.request_times.add(times.queue + times.prefill + times.decode);
    }

    /// The page.
    pub(crate) fn page(&self, load: Load) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (prompt, cached, completion) =
            (count(&self.prompt_tokens), count(&self.cached_tokens), count(&self.completion_tokens));
        let (prefill, decode) = (self.prefill.get(), self.decode.get());
        let mut page = Page(String::new());
        page.counter(
            "llamacpp:prompt_tokens_total",
            "Tokens of prompts that were computed",
            prompt.saturating_sub(cached),
        );
        page.counter("llamacpp:prompt_seconds_total", "Seconds on prompts", prefill);
        page.counter("llamacpp:tokens_predicted_total", "Generated tokens", completion);
        page.counter("llamacpp:tokens_predicted_seconds_total", "Seconds on generated tokens", decode);
        let rate = |tokens: u64, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        page.gauge(
            "llamacpp:prompt_tokens_seconds",
            "Prompt tokens a second",
            rate(prompt.saturating_sub(cached), prefill),
        );
        page.gauge(
            "llamacpp:predicted_tokens_seconds",
            "Generated tokens a second",
            rate(completion, decode),
        );
        page.gauge("llamacpp:requests_processing", "Requests being answered", load.running);
        page.gauge("llamacpp:requests_deferred", "Requests that wait", load.waiting);
        page.gauge("vllm:num_requests_running", "Requests being answered", load.running);
        page.gauge("vllm:num_requests_waiting", "Requests that wait", load.waiting);
        page.counter("vllm:prompt_tokens_total", "Tokens of prompts", prompt);
        page.counter("vllm:generation_tokens_total", "Generated tokens", completion);
        page.counter(
            "vllm:prefix_cache_queries_total",
            "Tokens of prompts that were looked for among earlier states",
            prompt,
        );
        page.counter("vllm:prefix_cache_hits_total", "Tokens of prompts that were found there", cached);
        page.head("vllm:request_success_total", "Answers by the reason of their end", "counter");
        for (reason, counter) in [
            ("stop", &self.stopped),
            ("length", &self.limited),
            ("tool_calls", &self.called),
            ("abort", &self.cancelled),
            ("error", &self.failed),
        ] {
            page.line(&format!("vllm:request_success_total{{finished_reason=\"{reason}\"}}"), count(counter));
        }
        page.histogram("vllm:request_queue_time_seconds", "Seconds of waiting", &self.queue_times);
        page.histogram(
            "vllm:time_to_first_token_seconds",
            "Seconds to the first token",
            &self.first_token_times,
        );
        page.histogram("vllm:e2e_request_latency_seconds", "Seconds of whole answers", &self.request_times);
        page.gauge("lily:state_bytes", "Bytes of session states and earlier states", load.state_bytes);
        page.gauge("lily:asleep", "1 while the model is let go", u8::from(load.asleep));
        page.0
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "counter");
        self.line(name, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "gauge");
        self.line(name, value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        let mut below = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&histogram.buckets) {
            below += bucket.load(Ordering::Relaxed);
            self.line(&format!("{name}_bucket{{le=\"{bound}\"}}"), below);
        }
        let count = histogram.count.load(Ordering::Relaxed);
        self.line(&format!("{name}_bucket{{le=\"+Inf\"}}"), count);
        self.line(&format!("{name}_sum"), histogram.sum.get());
        self.line(&format!("{name}_count"), count);
    }
}
