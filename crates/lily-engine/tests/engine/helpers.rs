//! Requests to an engine over the fake, what they must give, and what they gave.

use std::sync::Arc;

use lily_engine::{CutMarkers, CutRule, EngineConfig, LocalEngine, Sampler, Scratch, start};
use lily_protocol::{
    Engine, Event, FinishReason, Generation, GenerationRequest, Limits, Logprobs, Sampling, SubmitError,
    Usage,
};

use crate::fake::*;

pub(crate) fn markers() -> CutMarkers {
    CutMarkers { end_of_turn: vec![TURN_END], assistant_header: HEADER.to_vec() }
}

pub(crate) fn config() -> EngineConfig {
    let limits = Limits { context: CONTEXT, model_context: CONTEXT, vocabulary: VOCABULARY };
    EngineConfig {
        end_tokens: vec![END],
        chunk: CHUNK,
        cut_markers: markers(),
        cache_memory: 1 << 20,
        ..EngineConfig::new(limits)
    }
}

/// An engine over the fake.
pub(crate) fn engine(config: EngineConfig) -> (LocalEngine, Handle) {
    let controls = Arc::new(Controls::default());
    (start(config, Box::new(Fake::new(controls.clone()))).unwrap(), Handle(controls))
}

pub(crate) fn request(prompt: Vec<u32>, max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        prompt,
        text: None,
        max_tokens: Some(max_tokens),
        sampling: Sampling::greedy(),
        logprobs: None,
        prompt_logprobs: None,
        ignore_end: true,
    }
}

/// Five requests that are all at a decode step, which does not run before the gate opens.
pub(crate) fn five_at_a_step(
    engine: &LocalEngine,
    controls: &Handle,
) -> (Vec<GenerationRequest>, Vec<Generation>) {
    controls.allow(0);
    let requests: Vec<_> = (0..5).map(|i| request(text(20 + i, 10), 30)).collect();
    let generations = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    controls.allow(15);
    controls.wait_for_arrivals(16);
    (requests, generations)
}

/// A prompt of `length` ordinary tokens that starts with `first`.
pub(crate) fn text(first: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| if i == 0 { first } else { 10 + (first * 7 + i * 13 + i / 9) % 60 }).collect()
}

/// What a request gives, computed without an engine: the prompt cut by the rule, token after token.
pub(crate) fn expected(request: &GenerationRequest) -> (Vec<u32>, FinishReason) {
    let cuts = CutRule::new(CHUNK, markers()).cuts(&request.prompt);
    let mut stops: Vec<usize> = cuts.iter().map(|cut| cut.position).collect();
    stops.push(request.prompt.len());
    stops.dedup();
    let (mut hash, mut start) = (7, 0);
    for stop in stops {
        hash = prefilled(hash, &request.prompt[start..stop]);
        start = stop;
    }
    let banned = if request.ignore_end { vec![END] } else { vec![] };
    let mut sampler = Sampler::new(request.sampling.clone(), VOCABULARY, &request.prompt, banned).unwrap();
    let mut scratch = Scratch::default();
    let rest = CONTEXT - request.prompt.len();
    let mut tokens = Vec::new();
    while tokens.len() < request.max_tokens.unwrap_or(rest).min(rest) {
        let id = sampler.choose(&logits(hash), &mut scratch).unwrap();
        if id == END {
            return (tokens, FinishReason::Stop);
        }
        tokens.push(id);
        hash = decoded(hash, id);
    }
    (tokens, FinishReason::Length)
}

/// A whole generation.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    /// Log probabilities of the prompt.
    pub(crate) prompt: Option<Vec<Option<Logprobs>>>,
    /// (done, cached) of each progress event.
    pub(crate) progress: Vec<(usize, usize)>,
    pub(crate) end: Option<Result<(FinishReason, Usage), String>>,
}

impl Answer {
    pub(crate) fn usage(&self) -> Usage {
        self.end.as_ref().unwrap().as_ref().unwrap().1
    }

    pub(crate) fn failure(&self) -> &str {
        self.end.as_ref().unwrap().as_ref().unwrap_err()
    }
}

/// Reads a generation to its end, checking the order of its events.
pub(crate) fn read(mut generation: Generation) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = generation.next_blocking() {
        assert!(answer.end.is_none(), "an event after the last one: {event:?}");
        match event {
            Event::Prefill { done, cached, total } => {
                assert!(answer.tokens.is_empty(), "progress after tokens");
                assert!(cached <= done && done <= total);
                assert!(answer.progress.last().is_none_or(|last| last.0 < done), "progress goes forward");
                answer.progress.push((done, cached));
            }
            Event::Prompt(scores) => {
                assert!(answer.tokens.is_empty() && answer.prompt.is_none(), "once, before the answer");
                answer.prompt = Some(scores);
            }
            Event::Tokens(tokens) => answer.tokens.extend(tokens.iter().map(|token| token.id)),
            Event::Finished { reason, usage } => answer.end = Some(Ok((reason, usage))),
            Event::Failed(sentence) => answer.end = Some(Err(sentence)),
        }
    }
    answer
}

pub(crate) fn run(engine: &LocalEngine, request: &GenerationRequest) -> Answer {
    read(engine.submit(request.clone()).unwrap())
}

/// Runs it and checks that it gives what it gives alone.
pub(crate) fn check(engine: &LocalEngine, request: &GenerationRequest) -> Answer {
    let answer = run(engine, request);
    assert_same(&answer, request);
    answer
}

pub(crate) fn assert_same(answer: &Answer, request: &GenerationRequest) {
    let (tokens, reason) = expected(request);
    assert_eq!(answer.tokens, tokens);
    assert_eq!(answer.end.as_ref().unwrap().as_ref().unwrap().0, reason);
}

pub(crate) fn refusal(engine: &LocalEngine, request: GenerationRequest) -> SubmitError {
    engine.submit(request).map(|_| ()).unwrap_err()
}
